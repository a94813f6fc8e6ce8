"""A call that comes again is not done again: on the same service, on a restarted one, after a restart of the sandbox."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.journal.journal import Journal
from cubicle.machine.machine import Machine
from cubicle.mcp_api import jsonrpc, unfinished_calls
from cubicle.mcp_api.unfinished_calls import UnfinishedCalls
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.tools.base import Answer, Call, say
from cubicle.tools.sub_agent import Task
from tests.support.emptying import empty
from tests.support.service import Options, Service, messages, raw_post, service_of, text

CHAT = Chat("test")
HOME = "/home/assistant"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Agent:
    """Counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, call: Call, task: Task) -> Answer:
        self.runs += 1
        return say(f"run {self.runs} of {task.prompt}")


class Restartable:
    """A service over one data folder that ends and starts again, as far as it can be done in one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = Agent()
        self.settings: dict[str, Any] = {"resume_seconds": 60, "view_images": "blocks"}
        self.service: Service
        self.journal: Journal
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        stack = self._stack = AsyncExitStack()
        self.journal = await stack.enter_async_context(Journal(self.folder / "journal"))
        unfinished = UnfinishedCalls(self.journal)
        driver, index = MemoryDriver(self.folder), ChatIndex(self.folder / "ledger")
        fleet = await stack.enter_async_context(Fleet(driver, index, sandbox_services=[unfinished.attached]))
        options = Options(self.settings, sub_agent=self.agent, journal=self.journal, unfinished=unfinished)
        self.service = await stack.enter_async_context(service_of(fleet, options))

    async def stop(self) -> None:
        self.service.door.end_streams()  # as the server does when it gets SIGTERM
        await self._stack.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def restart_sandbox(self) -> None:
        await self.service.fleet.stop(CHAT)

    async def restart_both(self) -> None:
        await self.stop()
        driver = MemoryDriver(self.folder)
        for seen in await driver.list():
            await driver.stop(seen.name)
        await self.start()

    async def call(self, key: str, tool: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        return await self.service.call(tool, arguments, headers={"Idempotency-Key": key}, **options)

    async def bash(self, key: str, command: str, **options: Any) -> str:
        return text(await self.call(key, "bash_tool", {"command": command, "description": "test"}, **options))

    async def runs(self, **options: Any) -> list[str]:
        """What the commands have written down."""
        return (await self.service.bash("echo runs:; cat ~/runs 2>/dev/null || true", **options)).split()[1:]


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Restartable]:
    made = Restartable(tmp_path)
    await made.start()
    yield made
    await made.stop()
    await empty(MemoryDriver(tmp_path))


async def nothing(_ours: Restartable) -> None:
    """The same service."""


RESTARTS: list[Any] = [
    pytest.param(nothing, id="none"),
    pytest.param(Restartable.restart, id="service"),
    pytest.param(Restartable.restart_sandbox, id="sandbox"),
    pytest.param(Restartable.restart_both, id="both"),
]
Restart = Callable[[Restartable], Awaitable[None]]


# ---- finished


@pytest.mark.parametrize("restart", RESTARTS)
async def test_a_finished_call_of_each_tool_gets_the_same_answer(ours: Restartable, restart: Restart) -> None:
    await ours.service.bash(f"printf 'a b c' > {HOME}/text; echo shown > {HOME}/shown")
    await ours.service.bash(f"echo {base64.b64encode(PIXEL).decode()} | base64 -d > {HOME}/one.png")
    calls = {
        "bash": ("bash_tool", {"command": "echo once >> ~/runs; date +%N; exit 3", "description": "test"}),
        "long": ("bash_tool", {"command": "seq 1 50000", "description": "test"}),
        "view": ("view", {"path": f"{HOME}/shown"}),
        "picture": ("view", {"path": f"{HOME}/one.png"}),
        "create": ("create_file", {"path": f"{HOME}/new", "content": "new"}),
        "edit": ("str_replace", {"path": f"{HOME}/text", "old_str": "b", "new_str": "b b"}),
        "agent": ("sub_agent", {"prompt": "work"}),
        "bad": ("view", {"path": "relative"}),
    }
    first = {key: await ours.call(key, *call) for key, call in calls.items()}
    await restart(ours)
    await ours.service.bash(f"echo other > {HOME}/shown; echo other > {HOME}/new")
    assert {key: await ours.call(key, *call) for key, call in calls.items()} == first
    assert await ours.runs() == ["once"]
    assert await ours.service.bash(f"cat {HOME}/text {HOME}/new") == "a b b cother\n"
    assert ours.agent.runs == 1
    assert first["picture"]["content"][1]["type"] == "image"


async def test_the_newer_era_has_it_as_well(ours: Restartable) -> None:
    params = {"name": "bash_tool", "arguments": {"command": "echo once >> ~/runs; date +%N", "description": "test"}}
    for meta in ({"cubicle/idempotencyKey": "k1"}, {"claudecode/toolUseId": "toolu_01A09q90qw90lq917835lq9"}):
        first = await ours.service.ask_modern("tools/call", {**params, "_meta": meta})
        assert (await ours.service.ask_modern("tools/call", {**params, "_meta": meta}))["result"] == first["result"]
    assert await ours.runs() == ["once", "once"]


async def test_the_id_of_a_request_in_its_session_is_enough(ours: Restartable) -> None:
    async def ask(session: str | None, id: int, command: str) -> str:
        params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        body = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        headers = {"Mcp-Session-Id": session} if session else {}
        return text(messages(await ours.service.post(body, headers=headers))[-1]["result"])

    command = "echo once >> ~/runs; date +%N"
    first = await ask("s1", 1, command)
    assert await ask("s1", 1, command) == first
    await ours.restart()
    assert await ask("s1", 1, command) == first
    assert await ours.runs() == ["once"]
    for session, id, other in (("s1", 2, command), ("s2", 1, command), ("s1", 1, f"{command} "), (None, 1, command)):
        assert await ask(session, id, other) != first
    assert await ask(None, 1, command) != await ask(None, 1, command)
    assert len(await ours.runs()) == 7


async def ask_in_session(ours: Restartable, session: str, id: int, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return messages(await ours.service.post(body, headers={"Mcp-Session-Id": session}))[-1]["result"]


async def test_a_client_that_gives_all_its_requests_one_id_gets_new_answers(ours: Restartable) -> None:
    async def bash(command: str) -> str:
        arguments = {"command": command, "description": "test"}
        return text(await ask_in_session(ours, "s1", 1, "tools/call", name="bash_tool", arguments=arguments))

    await ask_in_session(ours, "s1", 1, "tools/list")
    assert await bash("date +%N") != await bash("date +%N")


async def test_what_has_the_id_of_another_call_is_done_and_so_is_what_follows(ours: Restartable) -> None:
    async def create(content: str) -> Any:
        arguments = {"path": f"{HOME}/file", "content": content}
        return await ask_in_session(ours, "s1", 1, "tools/call", name="create_file", arguments=arguments)

    for content in ("1", "2", "1"):
        await create(content)
        assert await ours.service.bash(f"cat {HOME}/file") == content


async def test_what_the_sandbox_failed_to_do_is_tried_again_under_its_key(ours: Restartable) -> None:
    await ours.bash("k0", "true")
    call = asyncio.create_task(ours.bash("k1", "echo once >> ~/runs; sleep 5; echo done"))
    async with asyncio.timeout(30):
        while await ours.runs() != ["once"]:
            await asyncio.sleep(0.05)
    await ours.restart_sandbox()
    assert "The sandbox could not do this" in await call
    answer = await ours.bash("k1", "echo once >> ~/runs; sleep 5; echo done")
    assert "It was not done again" in answer
    assert await ours.runs() == ["once"]


async def test_the_same_key_with_other_arguments_is_an_error(ours: Restartable) -> None:
    async def ask(key: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments}
        answer = await ours.service.ask("tools/call", params, headers={"Idempotency-Key": key})
        error: dict[str, Any] = answer["error"]
        return error

    await ours.bash("k1", "true")
    waiting = asyncio.create_task(ours.bash("k2", "read < <(sleep 60)"))
    while (await ours.service.bash("pgrep -cfx 'sleep 60' || true")) == "0\n":
        await asyncio.sleep(0.05)
    for key in ("k1", "k2"):
        for tool, arguments in (("bash_tool", {"command": "false", "description": "test"}), ("view", {"path": HOME})):
            error = await ask(key, tool, arguments)
            assert error["code"] == jsonrpc.INVALID_PARAMS
            assert "another tool or other arguments" in error["message"]
    waiting.cancel()
    bad = await ask("x" * 256, "view", {"path": HOME})
    assert bad["code"] == jsonrpc.INVALID_PARAMS
    assert "255 printable" in bad["message"]


async def test_the_same_key_in_another_chat_is_another_call(ours: Restartable) -> None:
    for chat in ("one", "two"):
        await ours.bash("k1", "echo once >> ~/runs", chat=chat)
        assert await ours.runs(chat=chat) == ["once"]


async def test_the_same_key_of_another_tenant_is_another_call(tmp_path: Path) -> None:
    ours = Restartable(tmp_path)
    await ours.start()
    keys = json.dumps({"k" * 32: "a", "l" * 32: "b"})
    driver = MemoryDriver(tmp_path)
    options = Options(ours.settings, keys=keys, journal=ours.journal)
    async with service_of(ours.service.fleet, options) as service:
        answers = []
        for key in ("k" * 32, "l" * 32, "k" * 32):
            arguments = {"command": "date +%N", "description": "test"}
            headers = {"Idempotency-Key": "same", "Authorization": f"Bearer {key}"}
            answers.append(text(await service.call("bash_tool", arguments, headers=headers)))
    assert answers[0] != answers[1]
    assert answers[0] == answers[2]
    await ours.stop()
    await empty(driver)


# ---- running


async def test_a_running_call_is_joined(ours: Restartable) -> None:
    await ours.service.bash("mkfifo ~/go")
    command = "echo once >> ~/runs; cat ~/go"
    calls = [asyncio.create_task(ours.bash("k1", command)) for _ in range(5)]
    await ours.service.bash("echo went > ~/go")
    assert await asyncio.gather(*calls) == ["went\n"] * 5
    assert await ours.runs() == ["once"]


@pytest.mark.parametrize("restart", RESTARTS[:2])
async def test_a_call_that_outlived_its_beginning_in_a_full_journal_is_not_done_again(
    ours: Restartable, restart: Restart
) -> None:
    command = "echo once >> ~/runs; until [ -e go ]; do sleep 0.02; done; date +%N"
    params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
    params["_meta"] = {"callId": "toolu_01A09q90qw90lq917835lq9"}
    call = asyncio.create_task(ours.service.ask("tools/call", params))
    async with asyncio.timeout(60):
        while not await ours.runs():
            await asyncio.sleep(0.05)
    for _ in range(20):
        ours.journal.record(CHAT, "upload", {"path": "x" * 200_000})
        await ours.journal.settle(CHAT)
    await ours.service.bash("touch go")
    first = (await call)["result"]
    await restart(ours)
    assert (await ours.service.ask("tools/call", params))["result"] == first
    assert await ours.runs() == ["once"]


async def cut_off(ours: Restartable, key: str, command: str) -> None:
    """Begin a call and lose the connection when its command runs."""
    params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with raw_post(ours.service.url, body, "X-Chat-Id: test", f"Idempotency-Key: {key}"):
        async with asyncio.timeout(60):
            while not await ours.runs():
                await asyncio.sleep(0.05)


async def test_a_caller_that_comes_back_in_time_finds_its_command_running(ours: Restartable) -> None:
    await ours.service.bash("mkfifo ~/go")
    command = "echo once >> ~/runs; cat ~/go"
    await cut_off(ours, "k1", command)
    again = asyncio.create_task(ours.bash("k1", command))
    await ours.service.bash("echo went > ~/go")
    assert await again == "went\n"
    assert await ours.runs() == ["once"]


async def test_a_caller_that_does_not_come_back_has_its_command_ended(ours: Restartable) -> None:
    ours.settings["resume_seconds"] = 0.5
    await ours.restart()
    await cut_off(ours, "k1", "echo once >> ~/runs; exec sleep 633")
    await until_gone(ours, "sleep 633")
    answer = await ours.call(
        "k1", "bash_tool", {"command": "echo once >> ~/runs; exec sleep 633", "description": "test"}
    )
    assert answer["isError"]
    assert "It was not done again." in text(answer)
    assert await ours.runs() == ["once"]


async def until_gone(ours: Restartable, command: str, **options: Any) -> None:
    async with asyncio.timeout(60):
        while await is_there(ours, command, **options):
            await asyncio.sleep(0.1)


async def is_there(ours: Restartable, command: str, **options: Any) -> bool:
    return await ours.service.bash(f"pgrep -cfx '{command}' || true", **options) != "0\n"


async def leave(ours: Restartable, *callers: asyncio.Task[str]) -> None:
    """The callers go before the service stops: nobody tells them that their calls go on."""
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    calls = ours.service.door._calls
    assert calls is not None
    async with asyncio.timeout(60):
        while calls.followed:
            await asyncio.sleep(0.02)


async def test_a_command_runs_on_through_a_restart_of_the_service(ours: Restartable) -> None:
    await ours.service.bash("mkfifo ~/go")
    command = "echo once >> ~/runs; seq 1 30000; cat ~/go; exit 4"
    first = asyncio.create_task(ours.call("k1", "bash_tool", {"command": command, "description": "test"}))
    async with asyncio.timeout(60):
        while not await ours.runs():
            await asyncio.sleep(0.05)
    ours.service.door.end_streams()  # as the server does after the drain
    told = await first
    await ours.restart()
    assert told["isError"]
    assert "it goes on in the sandbox" in told["content"][-1]["text"]
    again = asyncio.create_task(ours.bash("k1", command))
    await ours.service.bash("echo went > ~/go")
    said = await again
    assert said.startswith("1\n2\n3\n")
    assert said.endswith("\n30000\nwent\n[exit code 4]")
    assert "characters left out" in said
    assert await ours.runs() == ["once"]


async def test_a_command_that_nobody_comes_back_for_is_ended_by_the_next_service(ours: Restartable) -> None:
    command = "echo once >> ~/runs; exec sleep 634"
    first = asyncio.create_task(ours.bash("k1", command))
    async with asyncio.timeout(60):
        while not await ours.runs():
            await asyncio.sleep(0.05)
    await leave(ours, first)
    ours.settings["resume_seconds"] = 1
    await ours.restart()
    await until_gone(ours, "sleep 634")
    async with asyncio.timeout(60):
        while (kept := await ours.journal.find_call(CHAT, "key:k1")) is None or kept.end is None:
            await asyncio.sleep(0.05)
    assert kept.end.fields["ending"] == "disconnected"


async def test_a_sandbox_that_says_nothing_is_in_nobody_elses_way(
    ours: Restartable, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {"silent": "sleep 641", "other": "sleep 642"}
    calls = []
    for chat, command in commands.items():
        calls.append(asyncio.create_task(ours.bash(chat, f"echo {chat} >> ~/runs; exec {command}", chat=chat)))
        async with asyncio.timeout(60):
            while not await ours.runs(chat=chat):
                await asyncio.sleep(0.05)
    await leave(ours, *calls)
    ours.settings["resume_seconds"] = 1
    await ours.stop()
    answers, asked, ask = asyncio.Event(), [], Machine.look_for

    async def look_for(machine: Machine, id: str) -> None:
        if not asked:
            asked.append(machine.name)
        if machine.name == asked[0]:
            await answers.wait()
        await ask(machine, id)

    monkeypatch.setattr(Machine, "look_for", look_for)
    monkeypatch.setattr(unfinished_calls, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(unfinished_calls, "_PAUSES", (0.1,) * 600)
    await ours.start()
    async with asyncio.timeout(60):
        while len(left := [chat for chat in commands if await is_there(ours, commands[chat], chat=chat)]) == 2:
            await asyncio.sleep(0.1)
    assert len(left) == 1
    answers.set()
    await until_gone(ours, commands[left[0]], chat=left[0])


async def test_a_command_that_the_stop_of_the_sandbox_ended_is_not_run_again(ours: Restartable) -> None:
    command = "echo once >> ~/runs; exec sleep 635"
    first = asyncio.create_task(ours.bash("k1", command))
    async with asyncio.timeout(60):
        while not await ours.runs():
            await asyncio.sleep(0.05)
    await ours.restart_both()
    await asyncio.gather(first, return_exceptions=True)
    for _ in range(2):
        answer = await ours.call("k1", "bash_tool", {"command": command, "description": "test"})
        assert answer["isError"]
        assert "may have been done in part" in text(answer)
    assert await ours.runs() == ["once"]


async def test_a_call_that_is_cancelled_is_ended_and_stays_so(ours: Restartable) -> None:
    command = "echo once >> ~/runs; exec sleep 636"
    params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
    body = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params}
    headers = {"Mcp-Session-Id": "s1", "Idempotency-Key": "k1"}
    first = asyncio.create_task(ours.service.post(body, headers=headers))
    async with asyncio.timeout(60):
        while not await ours.runs():
            await asyncio.sleep(0.05)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
    await ours.service.post(cancel, headers={"Mcp-Session-Id": "s1"})
    assert messages(await first)[-1]["error"]["code"] == jsonrpc.REQUEST_CANCELLED
    await until_gone(ours, "sleep 636")
    assert "It was not done again." in await ours.bash("k1", command)


async def test_without_an_identity_a_command_goes_on_too_and_its_caller_is_told(ours: Restartable) -> None:
    command = {"command": "echo once >> ~/runs; echo begun; exec sleep 637", "description": "test"}
    first = asyncio.create_task(ours.service.call("bash_tool", command))
    async with asyncio.timeout(60):
        while not await ours.runs():
            await asyncio.sleep(0.05)
    ours.settings["resume_seconds"] = 0.1
    ours.service.door.end_streams()  # as the server does after the drain
    told = await first
    await ours.restart()
    assert told["isError"]
    assert told["content"][0]["text"] == "begun\n"
    await asyncio.sleep(1)  # longer than it would have if its caller were to come back
    assert await is_there(ours, "sleep 637")
    await ours.service.bash("pkill -fx 'sleep 637'")
    async with asyncio.timeout(60):
        while unfinished_calls.unfinished(await ours.journal.entries(CHAT), before=1000):
            await asyncio.sleep(0.05)


# ---- what is not there any more


async def test_without_its_journal_the_sandbox_still_knows_what_was_done(ours: Restartable) -> None:
    command = "echo once >> ~/runs; date +%N"
    first = await ours.bash("k1", command)
    edit = {"path": f"{HOME}/runs", "old_str": "once", "new_str": "once once"}
    edited = await ours.call("k2", "str_replace", edit)
    await ours.stop()
    for file in (ours.folder / "journal").rglob("*.jsonl"):
        file.unlink()
    await ours.start()
    assert await ours.bash("k1", command) == first
    assert await ours.call("k2", "str_replace", edit) == edited
    assert await ours.runs() == ["once", "once"]


@pytest.mark.parametrize("damage", [b"", b"garbage", b'{"id":"x"}\n', zlib.compress(b"x" * 100)])
async def test_records_that_are_damaged_run_nothing_twice(ours: Restartable, damage: bytes) -> None:
    """The journal knows that the call began, and the sandbox nothing: nobody can say whether it did anything."""
    command = "echo once >> ~/runs; exec sleep 638"
    first = asyncio.create_task(ours.bash("k1", command))
    async with asyncio.timeout(60):
        while not await ours.runs():
            await asyncio.sleep(0.05)
    await ours.stop()
    await asyncio.gather(first, return_exceptions=True)
    driver = MemoryDriver(ours.folder)
    for seen in await driver.list():
        await driver.stop(seen.name)
    for records in ours.folder.glob("memory/*/guest/calls"):
        (records / "newer").write_bytes(damage)
        if not damage:
            (records / "armed").rename(records / "tripped")
    await ours.start()
    said = await ours.bash("k1", command)
    assert "may have been done in part" in said
    assert await ours.runs() == ["once"]
