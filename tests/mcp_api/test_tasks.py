"""MCP Tasks, in the form of 2025-11-25 and in the extension of 2026-07-28."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.journal.chat_files import ChatFiles
from cubicle.journal.journal import Journal
from cubicle.mcp_api import mcp_tasks, task_limits, task_methods
from tests.clients.fixture_tools import FIXTURES
from tests.mcp_api.test_streaming import SlowAgent
from tests.support.service import Options, Service, fleet_of, service_of

OLDER = {"MCP-Protocol-Version": "2025-11-25"}
EXTENSION = "io.modelcontextprotocol/tasks"
WAITING = "echo begun; until [ -e go ]; do sleep 0.02; done; echo over"
KEYS = json.dumps({"key-of-the-first": "first", "key-of-the-second": "second"})


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with (
        fleet_of(tmp_path / "fleet") as fleet,
        Journal(tmp_path / "journal") as journal,
        service_of(fleet, Options(journal=journal, tools=FIXTURES)) as service,
    ):
        yield service


def bash(command: str) -> dict[str, Any]:
    return {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}


async def started(service: Service, command: str, task: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A task of 2025-11-25."""
    headers = OLDER | options.pop("headers", {})
    answer = await service.ask("tools/call", bash(command) | {"task": task or {}}, headers=headers, **options)
    found: dict[str, Any] = answer["result"]["task"]
    return found


async def asked(service: Service, method: str, id: str, **options: Any) -> dict[str, Any]:
    headers = OLDER | options.pop("headers", {})
    return await service.ask(method, {"taskId": id}, headers=headers, **options)


async def modern(service: Service, method: str, params: dict[str, Any], **options: Any) -> dict[str, Any]:
    declared = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}}
    headers = ({"Mcp-Name": params["taskId"]} if "taskId" in params else {}) | options.pop("headers", {})
    return await service.ask_modern(method, params | {"_meta": declared}, headers=headers, **options)


async def test_a_task_of_2025_11_25_from_start_to_result(service: Service) -> None:
    task = await started(service, WAITING, {"ttl": 60_000})
    assert task["status"] == "working"
    assert (task["ttl"], task["pollInterval"]) == (60_000, 1000)
    assert (await asked(service, "tasks/get", task["taskId"]))["result"]["status"] == "working"
    result = asyncio.create_task(asked(service, "tasks/result", task["taskId"]))
    await service.bash("touch go")
    found = (await result)["result"]
    assert found["content"] == [{"type": "text", "text": "begun\nover\n"}]
    assert found["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task["taskId"]}
    assert (await asked(service, "tasks/get", task["taskId"]))["result"]["status"] == "completed"
    assert (await asked(service, "tasks/result", task["taskId"]))["result"] == found


@pytest.mark.parametrize("ttl", [10**400, -(10**400), 0, "1", True, None], ids=range(6))
async def test_whatever_a_client_gives_as_ttl_is_brought_into_the_bounds(service: Service, ttl: Any) -> None:
    assert task_methods._seconds(float("nan")) is None  # no library sends it
    task = await started(service, "true", {"ttl": ttl})
    assert 1000 <= task["ttl"] <= 24 * 3_600_000


async def test_a_long_id_of_a_tool_call_is_found_again_by_its_task(service: Service) -> None:
    params = bash("echo done") | {"task": {}, "_meta": {"callId": "调" * 230 + "0f8a2c4e6b1d3957"}}
    task = (await service.ask("tools/call", params, headers=OLDER))["result"]["task"]
    found = (await asked(service, "tasks/result", task["taskId"]))["result"]
    assert found["content"] == [{"type": "text", "text": "done\n"}]


async def test_the_service_declares_tasks_in_each_revision_as_it_has_them(service: Service) -> None:
    hello = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    for version, has in (("2025-11-25", True), ("2025-06-18", False)):
        result = (await service.ask("initialize", hello | {"protocolVersion": version}))["result"]
        assert ("tasks" in result["capabilities"]) is has
    found = (await service.ask_modern("server/discover"))["result"]["capabilities"]
    assert EXTENSION in found["extensions"]
    assert "tasks" not in found
    tools = (await service.ask("tools/list", headers=OLDER))["result"]["tools"][:5]
    assert [tool.get("execution", {}).get("taskSupport") for tool in tools] == [
        "optional",
        None,
        None,
        None,
        "optional",
    ]


async def test_a_tool_that_makes_no_tasks_refuses_one(service: Service) -> None:
    params = {"name": "view", "arguments": {"path": "/"}, "task": {}}
    assert (await service.ask("tools/call", params, headers=OLDER))["error"]["code"] == -32601


async def test_a_tool_that_reports_an_error_has_failed_in_the_older_form_only(service: Service) -> None:
    task = await started(service, "exit 3")
    assert (await asked(service, "tasks/result", task["taskId"]))["result"]["isError"] is True
    assert (await asked(service, "tasks/get", task["taskId"]))["result"]["status"] == "failed"
    state = (await modern(service, "tasks/get", {"taskId": task["taskId"]}))["result"]
    assert (state["status"], state["result"]["isError"]) == ("completed", True)


async def test_a_cancelled_task_ends_its_command(service: Service) -> None:
    task = await started(service, "exec -a marker-task sleep 60")
    assert (await asked(service, "tasks/cancel", task["taskId"]))["result"]["status"] == "cancelled"
    assert "pgrep" not in await service.bash("pgrep -f marker-tas[k] || true")
    assert (await asked(service, "tasks/cancel", task["taskId"]))["error"]["code"] == -32602
    assert (await asked(service, "tasks/result", task["taskId"]))["error"]["code"] == -32800


async def test_a_task_goes_on_without_a_client(service: Service) -> None:
    task = await started(service, WAITING)
    waiting = asyncio.create_task(asked(service, "tasks/result", task["taskId"]))
    await asyncio.sleep(0.1)
    waiting.cancel()  # its connection is closed
    await service.bash("touch go")
    result = (await asked(service, "tasks/result", task["taskId"]))["result"]
    assert result["content"][0]["text"] == "begun\nover\n"


async def test_tasks_are_listed_in_parts_newest_first(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tasks, "MAX_LISTED", 2)
    ids = [(await started(service, f"echo {number}"))["taskId"] for number in range(5)]
    await started(service, "echo other", chat="another")
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        part = (await service.ask("tasks/list", cursor, headers=OLDER))["result"]
        assert len(part["tasks"]) <= 2
        seen += [task["taskId"] for task in part["tasks"]]
        if "nextCursor" not in part:
            break
        cursor = {"cursor": part["nextCursor"]}
    assert seen == ids[::-1]
    bad = await service.ask("tasks/list", {"cursor": "x"}, headers=OLDER)
    assert bad["error"]["code"] == -32602


@pytest.mark.parametrize("id", ["", "x", "0" * 32, f"{'0' * 32}-e10", "../../etc/passwd", "9" * 5000])
async def test_an_unknown_task_is_an_error(service: Service, id: str) -> None:
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        assert (await asked(service, method, id))["error"]["code"] == -32602


async def test_no_other_chat_or_tenant_has_a_task(service: Service, tmp_path: Path) -> None:
    async with (
        Journal(tmp_path / "another") as journal,
        service_of(service.fleet, Options(keys=KEYS, journal=journal)) as other,
    ):
        mine, theirs = ({"Authorization": f"Bearer key-of-the-{name}"} for name in ("first", "second"))
        task = await started(other, "echo mine", headers=mine)
        for headers, chat in ((theirs, "test"), (mine, "another")):
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                answer = await asked(other, method, task["taskId"], headers=headers, chat=chat)
                assert answer["error"]["code"] == -32602
            listed = await other.ask("tasks/list", headers=OLDER | headers, chat=chat)
            assert listed["result"]["tasks"] == []
        assert "result" in await asked(other, "tasks/result", task["taskId"], headers=mine)


async def test_an_expired_task_is_an_error_and_its_command_is_ended(service: Service) -> None:
    task = await started(service, "exec -a marker-expired sleep 60", {"ttl": 1000})
    for _ in range(500):
        answer = await asked(service, "tasks/get", task["taskId"])
        if "error" in answer:
            break
        await asyncio.sleep(0.02)
    assert answer["error"]["code"] == -32602
    assert "expired" in answer["error"]["message"]
    assert await service.bash("pgrep -f marker-expire[d] || echo none") == "none\n"
    assert (await service.ask("tasks/list", headers=OLDER))["result"]["tasks"] == []


async def test_tasks_that_run_are_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_limits, "MAX_RUNNING_OF_A_CHAT", 1)
    task = await started(service, WAITING)
    params = bash("echo more") | {"task": {}}
    assert (await service.ask("tools/call", params, headers=OLDER))["error"]["code"] == -32051
    await asked(service, "tasks/cancel", task["taskId"])
    assert (await started(service, "echo more"))["taskId"]


async def test_a_repeated_call_gives_the_same_task(service: Service) -> None:
    key = {"Idempotency-Key": "one-key-for-a-task"}
    first, second = [await started(service, "echo run >> runs", headers=key) for _ in range(2)]
    assert first["taskId"] == second["taskId"]
    await asked(service, "tasks/result", first["taskId"])
    assert (await started(service, "echo run >> runs", headers=key))["taskId"] == first["taskId"]
    assert await service.bash("cat runs") == "run\n"


async def test_one_key_runs_once_whatever_the_ttl_and_the_form(service: Service) -> None:
    key = {"Idempotency-Key": "one-key-for-two-forms"}
    command = f"echo run >> runs; {WAITING}"
    first = await started(service, command, {"ttl": 60_000}, headers=key)
    second = await started(service, command, {"ttl": 5_000}, headers=key)
    assert (second["taskId"], second["ttl"]) == (first["taskId"], 60_000)
    plain = asyncio.create_task(service.ask("tools/call", bash(command), headers=OLDER | key))
    await service.bash("touch go")
    assert (await plain)["result"]["content"][0]["text"] == "begun\nover\n"
    assert (await service.ask("tools/call", bash(command), headers=OLDER | key))["result"]["isError"] is False
    assert (await started(service, command, headers=key))["taskId"] == first["taskId"]
    assert await service.bash("cat runs") == "run\n"


async def test_a_key_of_another_call_or_of_none_that_is_a_task_is_refused(service: Service) -> None:
    key = {"Idempotency-Key": "key-of-a-plain-call"}
    await service.ask("tools/call", bash("echo plain"), headers=OLDER | key)
    for command in ("echo plain", "echo other"):
        answer = await service.ask("tools/call", bash(command) | {"task": {}}, headers=OLDER | key)
        assert answer["error"]["code"] == -32602
    assert (await service.ask("tasks/list", headers=OLDER))["result"]["tasks"] == []
    key = {"Idempotency-Key": "key-of-a-task"}
    task = await started(service, "echo task", headers=key)
    await asked(service, "tasks/result", task["taskId"])
    answer = await service.ask("tools/call", bash("echo other") | {"task": {}}, headers=OLDER | key)
    assert "other arguments" in answer["error"]["message"]


async def test_a_repeated_task_counts_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_limits, "MAX_RUNNING_OF_A_CHAT", 1)
    key = {"Idempotency-Key": "one-key-asked-often"}
    ids = {(await started(service, WAITING, headers=key))["taskId"] for _ in range(3)}
    assert len(ids) == 1


async def test_who_repeats_a_call_and_hangs_up_does_not_end_the_task_of_the_first(service: Service) -> None:
    key = {"Idempotency-Key": "one-key-for-two-clients"}
    task = await started(service, WAITING, headers=key)
    second = asyncio.create_task(modern(service, "tools/call", bash(WAITING), headers=key))
    await asyncio.sleep(0.2)  # within the time in which a short call is answered at once
    assert not second.done()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await service.bash("touch go")
    result = (await asked(service, "tasks/result", task["taskId"]))["result"]
    assert result["content"][0]["text"] == "begun\nover\n"


class SlowJournal(Journal):
    """On a disk that takes its time."""

    slow, held = False, asyncio.Event()

    async def settle(self, chat: Chat) -> bool:
        if self.slow:
            self.held.set()
            await asyncio.sleep(1)
        return await super().settle(chat)


async def test_a_client_that_gives_up_before_it_knows_of_its_task_ends_it(tmp_path: Path) -> None:
    async with (
        fleet_of(tmp_path / "fleet") as fleet,
        SlowJournal(tmp_path / "journal") as journal,
        service_of(fleet, Options(journal=journal)) as service,
    ):
        await service.bash("true")
        journal.slow, journal.held = True, asyncio.Event()
        creating = asyncio.create_task(started(service, "exec -a marker-unknown sleep 60"))
        await journal.held.wait()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        status = "working"
        while status == "working":
            (task,) = (await service.ask("tasks/list", headers=OLDER))["result"]["tasks"]
            status = task["status"]
        assert status == "failed"
        assert await service.bash("pgrep -f marker-unknow[n] || echo none") == "none\n"


async def test_a_task_that_is_just_starting_goes_on_in_the_next_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"Idempotency-Key": "key-of-a-task-at-the-end"}
    at_once = task_methods.AT_ONCE_SECONDS
    monkeypatch.setattr(task_methods, "AT_ONCE_SECONDS", 60.0)
    command = f"echo run >> runs; {WAITING}"
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with Journal(tmp_path / "journal") as journal, service_of(fleet, Options(journal=journal)) as first:
            starting = asyncio.create_task(modern(first, "tools/call", bash(command), headers=key))
            await first.bash("until [ -e runs ]; do sleep 0.01; done")
            assert not starting.done()
            first.door.end_streams()  # as the server does when it gets SIGTERM
            starting.cancel()
            await asyncio.wait([starting])
        monkeypatch.setattr(task_methods, "AT_ONCE_SECONDS", at_once)
        async with Journal(tmp_path / "journal") as journal, service_of(fleet, Options(journal=journal)) as second:
            task = (await modern(second, "tools/call", bash(command), headers=key))["result"]
            assert task["status"] == "working"
            await second.bash("touch go")
            result = (await asked(second, "tasks/result", task["taskId"]))["result"]
            assert result["content"][0]["text"] == "begun\nover\n"
            assert await second.bash("cat runs") == "run\n"


async def test_a_task_expires_in_the_next_service_by_the_time_of_its_start(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "key-of-a-task-that-expires"}
    command = "exec -a marker-late sleep 60"
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with Journal(tmp_path / "journal") as journal, service_of(fleet, Options(journal=journal)) as first:
            task = await started(first, command, {"ttl": 6000}, headers=key)
            await first.bash("until pgrep -f marker-lat[e]; do sleep 0.01; done")
        async with Journal(tmp_path / "journal") as journal, service_of(fleet, Options(journal=journal)) as second:
            again = await started(second, command, {"ttl": 3_600_000}, headers=key)
            assert {name: again[name] for name in ("taskId", "createdAt", "ttl", "status")} == {
                name: task[name] for name in ("taskId", "createdAt", "ttl", "status")
            }
            await second.bash("while pgrep -f marker-lat[e]; do sleep 0.02; done")


async def test_a_task_survives_a_restart_of_the_service(tmp_path: Path) -> None:
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with Journal(tmp_path / "journal") as journal, service_of(fleet, Options(journal=journal)) as first:
            done = await started(first, "echo done")
            await asked(first, "tasks/result", done["taskId"])
            running = await started(first, f"echo run >> runs; {WAITING}")
        async with Journal(tmp_path / "journal") as journal, service_of(fleet, Options(journal=journal)) as second:
            result = (await asked(second, "tasks/result", done["taskId"]))["result"]
            assert result["content"][0]["text"] == "done\n"
            assert (await asked(second, "tasks/get", running["taskId"]))["result"]["status"] == "working"
            await second.bash("touch go")
            result = (await asked(second, "tasks/result", running["taskId"]))["result"]
            assert result["content"][0]["text"] == "begun\nover\n"
            assert await second.bash("cat runs") == "run\n"
            assert len((await second.ask("tasks/list", headers=OLDER))["result"]["tasks"]) == 2


async def test_in_the_extension_a_long_call_becomes_a_task_and_a_short_one_does_not(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patient:
        patient.setattr(task_methods, "AT_ONCE_SECONDS", 60.0)  # a busy machine starts a sandbox slowly
        short = (await modern(service, "tools/call", bash("echo hi")))["result"]
    assert short["content"][0]["text"] == "hi\n"
    task = (await modern(service, "tools/call", bash(WAITING)))["result"]
    assert (task["resultType"], task["status"]) == ("task", "working")
    state = (await modern(service, "tasks/get", {"taskId": task["taskId"]}))["result"]
    assert "result" not in state
    await service.bash("touch go")
    while state["status"] == "working":
        state = (await modern(service, "tasks/get", {"taskId": task["taskId"]}))["result"]
    assert state["result"]["content"][0]["text"] == "begun\nover\n"
    assert (await modern(service, "tasks/update", {"taskId": task["taskId"]}))["result"]["resultType"] == "complete"
    for method in ("tasks/list", "tasks/result"):
        assert (await modern(service, method, {"taskId": task["taskId"]}))["error"]["code"] == -32601


@pytest.mark.parametrize("at_once", [60.0, 0.01], ids=["short", "long"])
async def test_a_call_that_the_journal_cannot_keep_is_answered_without_a_task(
    service: Service, monkeypatch: pytest.MonkeyPatch, at_once: float
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ChatFiles, "append", full)
    monkeypatch.setattr(task_methods, "AT_ONCE_SECONDS", at_once)
    answer = await modern(service, "tools/call", bash("echo run >> runs; sleep 0.2; echo over"))
    assert answer["result"]["content"][0]["text"] == "over\n"
    assert await service.bash("cat runs") == "run\n"


async def test_a_sub_agent_runs_as_a_task(tmp_path: Path) -> None:
    agent = SlowAgent()
    async with (
        fleet_of(tmp_path / "fleet") as fleet,
        Journal(tmp_path / "journal") as journal,
        service_of(fleet, Options(sub_agent=agent, journal=journal)) as service,
    ):
        params = {"name": "sub_agent", "arguments": {"prompt": "a poem"}, "task": {}}
        task = (await service.ask("tools/call", params, headers=OLDER))["result"]["task"]
        await agent.started.wait()
        agent.finish.set()
        result = (await asked(service, "tasks/result", task["taskId"]))["result"]
        assert result["content"][0]["text"] == "did: a poem"


async def test_without_a_journal_there_are_no_tasks(tmp_path: Path) -> None:
    async with fleet_of(tmp_path / "fleet") as fleet, service_of(fleet) as service:
        assert (await asked(service, "tasks/get", "x"))["error"]["code"] == -32601
        assert EXTENSION not in (await service.ask_modern("server/discover"))["result"]["capabilities"].get(
            "extensions", {}
        )
        answer = await service.ask("tools/call", bash("echo hi") | {"task": {}}, headers=OLDER)
        assert answer["result"]["content"][0]["text"] == "hi\n"


async def test_a_repeated_request_without_a_key_joins_its_task(service: Service) -> None:
    session = {"Mcp-Session-Id": "0123456789abcdef0123456789abcdef"}

    async def ask(id: int | str, command: str, chat: str = "test") -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": bash(command) | {"task": {}}}
        answer = (await service.post(body, headers=OLDER | session, chat=chat)).text
        lines = [line[6:] for line in answer.splitlines() if line.startswith("data: ")] or [answer]
        found: dict[str, Any] = json.loads(lines[-1])["result"]["task"]
        return found

    command = f"echo one >> runs; {WAITING}"
    first, again = await asyncio.gather(ask(7, command), ask(7, command))
    assert first["taskId"] == again["taskId"]
    assert (await ask(7, command))["taskId"] == first["taskId"]
    others = [await ask("7", command), await ask(8, command)]
    await service.bash("touch go")
    for task in (first, *others):
        await asked(service, "tasks/result", task["taskId"])
    assert len({task["taskId"] for task in (first, *others)}) == 3
    assert await service.bash("cat runs") == "one\n" * 3
    assert (await ask(7, command))["status"] == "completed"
    assert await service.bash("cat runs") == "one\n" * 3
    another = await ask(7, "echo other")  # the client counts from the start again
    assert another["taskId"] != first["taskId"]
    assert (await asked(service, "tasks/result", first["taskId"]))["result"]["content"][0]["text"] == "begun\nover\n"
    assert (await ask(7, command, "elsewhere"))["taskId"] != first["taskId"]


async def test_a_list_reads_no_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    large = await started(service, "seq 100000 | head -c 300000")
    failing = await started(service, "exit 3")
    for task in (large, failing):
        await asked(service, "tasks/result", task["taskId"])

    async def read(*_: object) -> None:
        raise AssertionError("an answer was read")

    monkeypatch.setattr(mcp_tasks, "read_answer", read)
    listed = (await service.ask("tasks/list", headers=OLDER))["result"]["tasks"]
    assert [(task["taskId"], task["status"]) for task in listed] == [
        (failing["taskId"], "failed"),
        (large["taskId"], "completed"),
    ]


@pytest.mark.parametrize(("method", "read"), [("tasks/get", "find_call"), ("tasks/list", "scan")])
async def test_a_task_that_ends_while_the_journal_is_read_has_not_failed(
    service: Service, monkeypatch: pytest.MonkeyPatch, method: str, read: str
) -> None:
    id = (await started(service, WAITING))["taskId"]
    reads = getattr(Journal, read)

    async def ends_meanwhile(*arguments: Any) -> Any:
        found = await reads(*arguments)
        monkeypatch.setattr(Journal, read, reads)
        await service.bash("touch go")
        await asked(service, "tasks/result", id)
        return found

    monkeypatch.setattr(Journal, read, ends_meanwhile)
    result = (await asked(service, method, id))["result"]
    assert [task["status"] for task in result.get("tasks", [result])] == ["completed"]
