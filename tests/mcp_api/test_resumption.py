"""A lost connection: who can go on where it was, for how long, and who cannot."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal
from cubicle.mcp_api import event_streams
from tests.mcp_api.test_streaming import SlowAgent, call, gone, there
from tests.support.service import ACCEPT, MODERN, Options, Service, fleet_of, messages, service_of

RESUMING = {"Mcp-Session-Id": "", "MCP-Protocol-Version": "2025-11-25", "X-Chat-Id": "stream"}
WAITING = "rm -f go; touch waits; echo begun; until [ -e go ]; do sleep 0.02; done; echo over"

Event = dict[str, str]


@pytest.fixture(autouse=True)
def session() -> None:
    """A new MCP session for each test: in one session, a request of the same id and arguments is the same call."""
    RESUMING["Mcp-Session-Id"] = str(uuid.uuid4())


async def parsed(response: httpx.Response) -> AsyncIterator[Event]:
    event: Event = {}
    async for line in response.aiter_lines():
        if not line and event:
            yield event
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(":")
            event[name] = value.removeprefix(" ")


@asynccontextmanager
async def posted(service: Service, body: dict[str, Any], **headers: str) -> AsyncIterator[AsyncIterator[Event]]:
    """The events of an answer; leaving the block hangs up."""
    sent = {"Accept": ACCEPT, "Content-Type": "application/json"} | RESUMING | headers
    async with httpx.AsyncClient(base_url=service.url, timeout=60, trust_env=False, verify=False) as client:
        request = client.stream("POST", "/mcp", content=json.dumps(body), headers=sent)
        async with request as response:
            assert response.headers["mcp-session-id"] == sent["Mcp-Session-Id"]
            yield parsed(response)


async def resume(service: Service, id: str, **headers: str) -> httpx.Response:
    sent = {"Accept": "text/event-stream", "Last-Event-ID": id} | RESUMING | headers
    return await service.client.get("/mcp", headers={name: value for name, value in sent.items() if value})


async def begun(service: Service, command: str = WAITING, **headers: str) -> str:
    """Start a command, hear its first words, hang up; the id of the last event."""
    return (await heard(service, command, **headers))["id"]


async def heard(service: Service, command: str, **headers: str) -> Event:
    async with posted(service, call(command, token="t"), **headers) as events:
        async for event in events:
            if "begun" in event.get("data", ""):
                return event
    pytest.fail("no output came")


def answered(response: httpx.Response) -> list[str]:
    """The progress and the text of the answer."""
    assert response.status_code == 200, response.text
    *notes, last = messages(response)
    return [*(note["params"]["message"] for note in notes), last["result"]["content"][0]["text"]]


async def test_the_first_event_lets_a_client_resume(service: Service) -> None:
    async with posted(service, call("echo hi")) as events:
        first, *_, last = [event async for event in events]
    assert first["data"] == ""
    assert int(first["retry"]) >= 500
    assert json.loads(last["data"])["result"]["content"][0]["text"] == "hi\n"
    assert first["id"] != last["id"]
    # Without a token, what was told of the call before, if it took long enough for that, is a message of the log.
    assert messages(await resume(service, first["id"]))[-1] == json.loads(last["data"])


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_older_revisions_get_ids_and_no_event_without_data(service: Service, version: str) -> None:
    seen: list[Event] = []
    async with posted(service, call(WAITING), **{"MCP-Protocol-Version": version}) as events:
        async for event in events:
            if not seen:
                await service.bash("touch go", chat="stream")
            seen.append(event)
    assert all(event["data"] and event["id"] for event in seen)
    assert len(seen) >= 2
    assert messages(await resume(service, seen[0]["id"]))[-1] == json.loads(seen[-1]["data"])


async def test_a_client_goes_on_exactly_where_it_was_cut_off(service: Service) -> None:
    last = await begun(service)
    await service.bash("touch go", chat="stream")
    assert answered(await resume(service, last)) == ["over\n", "begun\nover\n"]
    # Nobody knows whether an answer arrived: it can be had again, from wherever the client is.
    assert answered(await resume(service, last)) == ["over\n", "begun\nover\n"]


async def test_many_cuts_lose_nothing(service: Service) -> None:
    command = "echo begun; for i in $(seq 30); do echo $i; sleep 0.05; done"
    first = await heard(service, command)
    last, seen = first["id"], [json.loads(first["data"])]
    while "result" not in seen[-1]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last} | RESUMING
        async with service.client.stream("GET", "/mcp", headers=headers) as response:
            assert response.status_code == 200
            async for event in parsed(response):
                last = event["id"]
                seen.append(json.loads(event["data"]))
                break  # one event a connection
    whole = "begun\n" + "".join(f"{i}\n" for i in range(1, 31))
    assert "".join(each["params"]["message"] for each in seen[:-1]) == whole
    assert seen[-1]["result"]["content"][0]["text"] == whole


async def test_who_had_the_answer_is_told_not_to_come_again(service: Service) -> None:
    async with posted(service, call("echo hi")) as events:
        seen = [event async for event in events]
    response = await resume(service, seen[-1]["id"])
    assert (response.status_code, response.content) == (204, b"")


async def test_a_command_goes_on_while_its_client_is_away_until_the_time_is_over(service: Service) -> None:
    async with service_of(service.fleet, Options({"resume_seconds": 0.5})) as other:
        last = await begun(other, "echo begun; exec -a marker-away sleep 60")
        await there(other, "marker-away")
        await gone_at_last(other, "marker-away")
        answer = messages(await resume(other, last))[-1]
        assert answer["id"] == 7
        assert answer["error"]["code"] == -32800
        assert "nobody came back" in answer["error"]["message"]


async def gone_at_last(service: Service, pattern: str) -> None:
    for _ in range(100):
        try:
            return await gone(service, pattern)
        except AssertionError:
            continue
    pytest.fail("it was never ended")


async def test_a_client_of_an_older_revision_ends_its_command_at_once_until_it_has_resumed(service: Service) -> None:
    older = {"MCP-Protocol-Version": "2025-06-18", "Mcp-Session-Id": "of-an-older-client"}
    last = await begun(service, "echo begun; exec -a marker-older sleep 60", **older)
    await gone(service, "marker-older")
    assert "error" in messages(await resume(service, last, **older))[-1]
    last = await begun(service, **older)  # it comes back for its answers, as we know now
    await service.bash("touch go", chat="stream")
    assert answered(await resume(service, last, **older)) == ["over\n", "begun\nover\n"]


async def test_a_client_without_a_session_ends_its_command_at_once(service: Service) -> None:
    sent = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": "stream"}
    sent["MCP-Protocol-Version"] = "2025-11-25"
    body = json.dumps(call("echo begun; exec -a marker-none sleep 60", token="t"))
    async with (
        httpx.AsyncClient(base_url=service.url, timeout=60, trust_env=False, verify=False) as client,
        client.stream("POST", "/mcp", content=body, headers=sent) as response,
    ):
        assert "id" not in await anext(parsed(response))
    await gone(service, "marker-none")


async def test_a_cancellation_ends_a_command_whose_client_is_away(service: Service) -> None:
    last = await begun(service, "echo begun; exec -a marker-cancelled sleep 60")
    await there(service, "marker-cancelled")
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    await service.post(cancel, chat="stream", headers=RESUMING)
    await gone(service, "marker-cancelled")
    assert messages(await resume(service, last))[-1]["error"]["code"] == -32800


async def test_the_end_of_a_session_ends_its_commands(service: Service) -> None:
    own = {"Mcp-Session-Id": "one-that-is-ended"}
    last = await begun(service, "echo begun; exec -a marker-deleted sleep 60", **own)
    await there(service, "marker-deleted")
    assert (await service.client.delete("/mcp", headers=RESUMING | own)).status_code == 204
    await gone(service, "marker-deleted")
    assert (await resume(service, last, **own)).status_code == 404


async def test_a_sub_agent_can_be_resumed_too(service: Service) -> None:
    agent = SlowAgent()
    async with service_of(service.fleet, Options(sub_agent=agent)) as other:
        async with posted(other, call("a poem", tool="sub_agent")) as events:
            first = await anext(events)
            await agent.started.wait()
        agent.finish.set()
        assert answered(await resume(other, first["id"])) == ["did: a poem"]


async def test_a_run_of_an_agent_that_went_on_alone_can_be_followed_again(service: Service) -> None:
    agent = SlowAgent()
    async with service_of(service.fleet, Options({"resume_seconds": 0.2}, sub_agent=agent)) as other:
        async with posted(other, call("a poem", tool="sub_agent")) as events:
            first = await anext(events)
            await agent.started.wait()
        await asyncio.sleep(0.5)  # the time is over, and the run goes on
        assert not agent.ended.is_set()
        again = asyncio.create_task(resume(other, first["id"]))
        await asyncio.sleep(0.1)
        agent.finish.set()
        assert answered(await again) == ["did: a poem"]


KEYS = json.dumps({"key-of-the-first": "first", "key-of-the-second": "second"})


async def test_an_id_is_worth_nothing_to_others(service: Service) -> None:
    async with service_of(service.fleet, Options(keys=KEYS)) as other:
        mine = {"Authorization": "Bearer key-of-the-first"}
        last = await begun(other, **mine)
        for headers in (
            {"Authorization": "Bearer key-of-the-second"},
            mine | {"X-Chat-Id": "another"},
            mine | {"Mcp-Session-Id": "another"},
        ):
            response = await resume(other, last, **headers)
            assert response.status_code == 400
            assert "Last-Event-ID" in response.json()["detail"]
        assert (await resume(other, last)).status_code == 401
        assert (await resume(other, last, **mine | {"Mcp-Session-Id": ""})).status_code == 400
        touch = {"command": "touch go", "description": "go"}
        await other.call("bash_tool", touch, chat="stream", headers=mine)
        assert answered(await resume(other, last, **mine))[-2:] == ["over\n", "begun\nover\n"]


async def test_a_flood_of_ids_that_do_not_exist_holds_nobody_up(service: Service) -> None:
    async with service_of(service.fleet, Options({"resume_seconds": 600}, keys=KEYS)) as other:
        mine, theirs = ({"Authorization": f"Bearer key-of-the-{name}"} for name in ("first", "second"))
        last = await begun(other, **mine)
        for _ in range(10):
            flood = [resume(other, f"{last[:-1]}{number}", **theirs) for number in range(20)]
            assert {response.status_code for response in await asyncio.gather(*flood)} == {400}
        await other.call("bash_tool", {"command": "touch go", "description": "go"}, chat="stream", headers=mine)
        assert answered(await resume(other, last, **mine))[-2:] == ["over\n", "begun\nover\n"]


@pytest.mark.parametrize("id", ["1", "a.b.c", "..", "x" * 2000, "1e400.1.1", "%00", "a.b.c.d"])
async def test_an_id_that_was_never_given_is_refused(service: Service, id: str) -> None:
    assert (await resume(service, id)).status_code == 400


async def test_an_event_that_is_still_to_come_is_refused(service: Service) -> None:
    async with posted(service, call("echo hi")) as events:
        last = [event async for event in events][-1]["id"]
    start, _, number = last.rpartition(".")
    for changed in (f"{start}.{int(number) + 1}", f"{start}.-1", f"{start}.", f"{start}.{'9' * 30}", f"{start}.²"):
        sent = [(name.encode(), value.encode()) for name, value in ({"Last-Event-ID": changed} | RESUMING).items()]
        assert (await service.client.get("/mcp", headers=sent)).status_code == 400


async def test_get_without_an_id_is_no_method(service: Service) -> None:
    assert (await service.client.get("/mcp", headers=RESUMING)).status_code == 405
    assert (await resume(service, "1", **{"MCP-Protocol-Version": MODERN})).status_code == 405


async def test_a_forgotten_answer_is_an_error_that_ends_the_request(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "MAX_COUNT_OF_A_CHAT", 1)
    own = {"X-Chat-Id": "forgetful"}
    async with posted(service, call("echo 1"), **own) as events:
        first, *_ = [event async for event in events]
    async with posted(service, call("echo 2", identity=8), **own) as events:
        second, *_ = [event async for event in events]
    lost = messages(await resume(service, first["id"], **own))[-1]
    assert (lost["id"], lost["error"]["code"]) == (7, -32052)
    assert answered(await resume(service, second["id"], **own))[-1] == "2\n"


async def test_a_service_can_do_without(service: Service) -> None:
    async with service_of(service.fleet, Options({"resume_seconds": 0})) as other:
        async with posted(other, call("echo begun; exec -a marker-off sleep 60", token="t")) as events:
            assert "id" not in await anext(events)
        await gone(other, "marker-off")


async def test_a_new_response_takes_the_place_of_the_one_before(service: Service) -> None:
    await service.bash("rm -f waits", chat="stream")
    async with posted(service, call(WAITING, token="t")) as events:
        first = await anext(events)
        newer = asyncio.create_task(resume(service, first["id"]))
        async for _ in events:  # ends without an answer
            pass
        # The first event comes before the command, which removes what lets it go on.
        await service.bash("until [ -e waits ]; do sleep 0.02; done; touch go", chat="stream")
        *parts, answer = answered(await newer)
        assert "".join(parts) == answer == "begun\nover\n"


async def test_a_flood_that_nobody_reads_is_bounded_and_does_not_hold_up_the_command(service: Service) -> None:
    flood = 'for i in $(seq 40); do head -c 100000 /dev/zero | tr "\\0" "<"; sleep 0.1; done'
    last = await begun(service, f"rm -f flooded; echo begun; {flood}; touch flooded")
    await service.bash("until [ -e flooded ]; do sleep 0.05; done", chat="stream")
    response = await resume(service, last)
    assert len(response.content) < 2 * event_streams.MAX_UNSENT + 100_000
    assert "characters left out" in messages(response)[-1]["result"]["content"][0]["text"]


async def test_a_client_gets_its_answer_from_the_service_that_comes_after_a_restart(tmp_path: Path) -> None:
    secret = b"kept by the service"
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as first,
        ):
            async with posted(first, call("echo done", identity=1)) as events:
                done, *_ = [event async for event in events]
            last = await begun(first, f"echo run >> runs; {WAITING}")
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as second,
        ):
            assert answered(await resume(second, done["id"])) == ["done\n"]
            waiting = asyncio.create_task(resume(second, last))
            await second.bash("touch go", chat="stream")
            assert answered(await waiting) == ["begun\nover\n"]
            assert await second.bash("cat runs", chat="stream") == "run\n"


async def test_an_id_of_another_service_is_refused(service: Service) -> None:
    async with posted(service, call("echo hi")) as events:
        first, *_ = [event async for event in events]
    async with service_of(service.fleet) as other:  # signs with another secret
        assert (await resume(other, first["id"])).status_code == 400


async def test_a_client_that_asked_for_a_task_gets_it_from_the_service_that_comes_after_a_restart(
    tmp_path: Path,
) -> None:
    secret = b"kept by the service"
    body = call(WAITING)
    body["params"]["task"] = {}
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as first,
            posted(first, body) as events,
        ):
            priming, answer = [event async for event in events]
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as second,
        ):
            again = messages(await resume(second, priming["id"]))[-1]["result"]["task"]
            created = json.loads(answer["data"])["result"]["task"]
            assert (again["taskId"], again["createdAt"]) == (created["taskId"], created["createdAt"])
            assert again["status"] == "working"
            await second.bash("touch go", chat="stream")


def lose_ends(journal: Path) -> None:
    """As if the service had been killed before it wrote down how the newest call ended."""
    for path in journal.glob("*/*.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        assert json.loads(lines[-1])["kind"] == "end"
        path.write_bytes(b"".join(lines[:-1]))


FILE_CALLS = [
    ("create_file", {"path": "/home/assistant/f", "content": "mine"}, "Created /home/assistant/f (4 bytes)."),
    ("view", {"path": "/home/assistant/f", "view_range": [1, 1]}, "     1\tlater"),
]


@pytest.mark.parametrize(("tool", "arguments", "answer"), FILE_CALLS)
async def test_a_file_call_whose_answer_was_lost_by_a_crash_is_answered_and_not_done_again(
    tmp_path: Path, tool: str, arguments: dict[str, Any], answer: str
) -> None:
    secret = b"kept by the service"
    body = call("") | {"params": {"name": tool, "arguments": arguments}}
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as first,
            posted(first, body) as events,
        ):
            priming, _ = [event async for event in events]
        lose_ends(tmp_path / "journal")
        async with fleet.lease(Chat("stream")) as machine:
            await machine.write("/home/assistant/f", "later\n")
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as second,
        ):
            assert [line.rstrip() for line in answered(await resume(second, priming["id"]))] == [answer.rstrip()]
            assert await second.bash("cat ~/f", chat="stream") == "later\n"


async def test_a_run_of_an_agent_can_be_resumed_after_a_restart(tmp_path: Path) -> None:
    secret = b"kept by the service"
    async with fleet_of(tmp_path / "fleet") as fleet:
        agents = (SlowAgent(), SlowAgent())
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(sub_agent=agents[0], journal=journal, secret=secret)) as first,
            posted(first, call("a poem", tool="sub_agent")) as events,
        ):
            priming = await anext(events)
            await agents[0].started.wait()
            first.door.end_streams()  # as the server does when it gets SIGTERM
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(sub_agent=agents[1], journal=journal, secret=secret)) as second,
        ):
            waiting = asyncio.create_task(resume(second, priming["id"]))
            await agents[1].started.wait()
            agents[1].finish.set()
            assert answered(await waiting) == ["did: a poem"]


async def test_many_who_resume_one_call_at_once_after_a_restart_leave_nothing_counted(tmp_path: Path) -> None:
    secret = b"kept by the service"
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as first,
        ):
            last = await begun(first)
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as second,
        ):
            many = [asyncio.create_task(resume(second, last)) for _ in range(8)]
            await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)  # one takes the place of another
            await second.bash("touch go", chat="stream")
            texts = [messages(response) for response in await asyncio.gather(*many) if response.text]
            assert [found[-1]["result"]["content"][0]["text"] for found in texts if found] == ["begun\nover\n"]
            assert "error" not in messages(await resume(second, last))[-1]


async def test_when_the_service_stops_clients_are_told_at_once_to_come_back_later(tmp_path: Path) -> None:
    secret = b"kept by the service"
    async with fleet_of(tmp_path / "fleet") as fleet:
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as first,
            posted(first, call(f"echo run >> runs; {WAITING}", token="t")) as events,
        ):
            assert int((await anext(events))["retry"]) < 5000
            while "begun" not in (await anext(events))["data"]:
                pass
            first.door.end_streams()  # as the server does when it gets SIGTERM
            first.door.end_streams()
            (last,) = [event async for event in events]
            assert (last["retry"], last["data"]) == ("15000", "")
        async with (
            Journal(tmp_path / "journal") as journal,
            service_of(fleet, Options(journal=journal, secret=secret)) as second,
        ):
            waiting = asyncio.create_task(resume(second, last["id"]))
            await second.bash("touch go", chat="stream")
            assert answered(await waiting) == ["begun\nover\n"]
            assert await second.bash("cat runs", chat="stream") == "run\n"
