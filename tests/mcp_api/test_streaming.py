"""Output as it comes, signs of life, and the ways to end a command early."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cubicle.mcp_api import progress
from cubicle.tools.base import Answer, Call, say
from cubicle.tools.sub_agent import Task
from tests.support.service import ACCEPT, MODERN, Options, Service, messages, modern_meta, raw_post, service_of


def call(command: str, *, identity: int | str = 7, token: str | None = None, tool: str = "bash_tool") -> dict[str, Any]:
    arguments = {"command": command, "description": "test"} if tool == "bash_tool" else {"prompt": command}
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if token:
        params["_meta"] = {"progressToken": token}
    return {"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": params}


async def events(service: Service, body: dict[str, Any], **headers: str) -> AsyncIterator[tuple[float, Any]]:
    """(seconds since the request, message) as they come; a comment line is a string."""
    started = time.monotonic()
    sent = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": "stream"} | headers
    async with service.client.stream("POST", "/mcp", content=json.dumps(body), headers=sent) as response:
        async for line in response.aiter_lines():
            if line.startswith(":"):
                yield time.monotonic() - started, line
            elif line.startswith("data: "):
                yield time.monotonic() - started, json.loads(line[6:])


async def gone(service: Service, pattern: str) -> None:
    """Returns when no process of the chat has the pattern in its command line; fails after a second.

    On a machine so busy that the question itself takes long, or comes to do so meanwhile, after twenty questions."""
    async with service.fleet.lease(chat_of("stream")) as machine:
        began = time.monotonic()
        await machine.output(["pgrep", "-f", "nothing-of-this-name"])
        deadline = began + 1 + 20 * (time.monotonic() - began)
        for asked in itertools.count(1):
            _, found = await machine.output(["pgrep", "-f", pattern])
            if not found:
                return
            assert asked < 20 or time.monotonic() < deadline, "the command outlived its cancellation by a second"
            await asyncio.sleep(0.02)


async def there(service: Service, pattern: str) -> None:
    async with service.fleet.lease(chat_of("stream")) as machine:
        for _ in range(1000):
            if (await machine.output(["pgrep", "-f", pattern]))[1]:
                return
            await asyncio.sleep(0.02)
    pytest.fail("the command did not start")


def chat_of(name: str) -> Any:
    from cubicle.core.chat import Chat

    return Chat(name)


GATE = "rm -f go; echo a; until [ -e go ]; do sleep 0.02; done; echo b >&2"


async def through_the_gate(service: Service, token: str | None = None) -> list[dict[str, Any]]:
    """What comes of a command that goes on only when its first words were heard: they cannot have come with the end."""
    seen = []
    async for _, message in events(service, call(GATE, token=token)):
        seen.append(message)
        if len(seen) == 1:
            await service.bash("touch go", chat="stream")
    return seen


async def test_output_comes_as_progress_while_the_command_runs(service: Service) -> None:
    *notes, last = await through_the_gate(service, token="t1")
    assert {m["method"] for m in notes} == {"notifications/progress"}
    assert [m["params"]["message"] for m in notes] == ["a\n", "b\n"]
    assert {m["params"]["progressToken"] for m in notes} == {"t1"}
    assert notes[0]["params"]["progress"] < notes[1]["params"]["progress"]
    assert last["result"]["content"][0]["text"] == "a\nb\n"


async def test_without_a_token_output_comes_as_log_messages(service: Service) -> None:
    seen = await through_the_gate(service)
    assert [m["params"]["data"] for m in seen[:-1]] == ["a\n", "b\n"]
    assert {m["method"] for m in seen[:-1]} == {"notifications/message"}


async def test_output_is_gathered_into_batches(service: Service) -> None:
    command = "for i in $(seq 500); do echo $i; sleep 0.001; done"
    seen = [item async for item in events(service, call(command, token="t"))]
    notes = [m["params"]["message"] for _, m in seen[:-1]]
    assert 2 <= len(notes) <= seen[-1][0] / progress.WINDOW + 2
    assert "".join(notes) == "".join(f"{i}\n" for i in range(1, 501))


async def test_in_the_newer_era_output_comes_only_with_a_token(service: Service) -> None:
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bash_tool"}
    for token in ("t", None):
        body = call("echo a; sleep 0.3", token=token)
        body["params"]["_meta"] = modern_meta() | body["params"].get("_meta", {})
        sent = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": "stream"} | headers
        response = await service.client.post("/mcp", content=json.dumps(body), headers=sent)
        assert ("notifications/progress" in response.text) is bool(token)
        assert "notifications/message" not in response.text
        assert messages(response)[-1]["result"]["content"][0]["text"] == "a\n"


async def test_a_silent_command_gives_signs_of_life(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.bash("true", chat="stream")
    monkeypatch.setattr(progress, "HEARTBEAT", 0.1)
    seen = [item async for item in events(service, call("sleep 0.8", token="t"))]
    comments = [at for at, m in seen if isinstance(m, str)]
    beats = [m["params"] for _, m in seen if isinstance(m, dict) and m.get("method") == "notifications/progress"]
    assert 2 <= len(comments) == len(beats) <= seen[-1][0] / 0.1
    assert comments[0] >= 0.09
    assert "still running" in beats[0]["message"]
    silent = [m async for _, m in events(service, call("sleep 0.5"))]
    assert len(silent) >= 2
    assert [isinstance(m, str) for m in silent] == [True] * (len(silent) - 1) + [False]


class Ending:
    """A call that is followed until the test ends it."""

    def __init__(self) -> None:
        self.is_settled = False
        self._told: list[Callable[[], None]] = []

    def on_settled(self, tell: Callable[[], None]) -> None:
        self._told.append(tell)

    def forget_on_settled(self, tell: Callable[[], None]) -> None:
        self._told.remove(tell)

    def end(self) -> None:
        self.is_settled = True
        for tell in self._told:
            tell()


async def test_a_sign_of_life_sent_as_the_tool_ends_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that it set then would fire when nobody is there to hear of it."""
    monkeypatch.setattr(progress, "HEARTBEAT", 0.01)
    begun, told, beats = asyncio.Event(), asyncio.Event(), []

    async def beat(text: str, seconds: float) -> None:
        begun.set()
        await told.wait()
        beats.append(text)

    call = Ending()
    following = asyncio.create_task(progress.ProgressStream(beat, beat, flush=False).until(call))
    await begun.wait()
    call.end()
    told.set()
    await following
    await asyncio.sleep(0.05)
    assert len(beats) == 1


class Lateness:
    """How late this loop came to something while the block ran, at worst: so late may any timer of it be."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def __aenter__(self) -> Lateness:
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._looking.cancel()

    async def _look(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.1)
            self.worst = max(self.worst, time.monotonic() - began - 0.1)


@pytest.mark.real
async def test_the_heartbeat_comes_at_15_and_30_seconds(service: Service) -> None:
    await service.bash("true", chat="stream")
    async with Lateness() as late:
        seen = [item async for item in events(service, call("sleep 40", token="t"))]
    first, second, *others = [at for at, m in seen if isinstance(m, str)]
    # Asked for, timed, sent and received by one loop: each of these may come late.
    assert 14.9 < first < 18 + 4 * late.worst
    assert 29.9 < second < 33 + 4 * late.worst
    assert all(at > 44.9 for at in others)  # of a machine on which 40 seconds are more than 45


async def test_a_cancelled_command_is_gone_within_a_second(service: Service) -> None:
    session = {"Mcp-Session-Id": "8f7c2ed0-5a55-4e7b-9f6e-0d2f6f5b1a11"}
    running = asyncio.create_task(service.post(call("exec -a marker-cancel sleep 60"), chat="stream", headers=session))
    await there(service, "marker-cancel")
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    for chat, other in (("another", session), ("stream", {"Mcp-Session-Id": "other"})):
        assert (await service.post(cancel, chat=chat, headers=other)).status_code == 202
        assert not running.done()
    assert (await service.post(cancel, chat="stream", headers=session)).status_code == 202
    await gone(service, "marker-cancel")
    assert '"code":-32800' in (await running).text


@pytest.mark.parametrize("session", [{}, {"Mcp-Session-Id": "8f7c2ed0-5a55-4e7b-9f6e-0d2f6f5b1a12"}])
async def test_a_cancellation_that_fits_two_calls_ends_neither(service: Service, session: dict[str, str]) -> None:
    """Some clients give every request the id 1."""
    commands = [f"exec -a marker-shared-{number} sleep 60" for number in "ab"]
    ids: tuple[int | str, ...] = (1, "1")  # spelt in two ways, they are one
    calls = [call(command, identity=identity) for command, identity in zip(commands, ids, strict=True)]
    running = [asyncio.create_task(service.post(body, chat="stream", headers=session)) for body in calls]
    for number in "ab":
        await there(service, f"marker-shared-{number}")
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert (await service.post(cancel, chat="stream", headers=session)).status_code == 202
    for number in "ab":
        await there(service, f"marker-shared-{number}")
    async with service.fleet.lease(chat_of("stream")) as machine:
        await machine.output(["pkill", "-f", "marker-shared-b"])
    assert '"isError":true' in (await running[1]).text
    assert not running[0].done()
    assert (await service.post(cancel, chat="stream", headers=session)).status_code == 202  # now it means one
    await gone(service, "marker-shared-a")
    assert '"code":-32800' in (await running[0]).text


async def test_a_cancellation_that_may_mean_a_list_does_not_end_a_command(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, listed = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> list[object]:
        listing.set()
        await listed.wait()
        return []

    monkeypatch.setattr(service.uploads, "list", slow)
    running = asyncio.create_task(service.post(call("exec -a marker-beside sleep 60", identity=1), chat="stream"))
    await there(service, "marker-beside")
    body = {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}
    list_call = asyncio.create_task(service.post(body, chat="stream"))
    await listing.wait()
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert (await service.post(cancel, chat="stream")).status_code == 202
    await there(service, "marker-beside")
    listed.set()
    assert messages(await list_call)[-1]["result"]["resources"] == []
    assert (await service.post(cancel, chat="stream")).status_code == 202
    await gone(service, "marker-beside")
    assert '"code":-32800' in (await running).text


async def test_a_client_that_hangs_up_ends_its_command_within_a_second(service: Service) -> None:
    async with raw_post(service.url, call("exec -a marker-hangup sleep 60"), "X-Chat-Id: stream"):
        await there(service, "marker-hangup")
    await gone(service, "marker-hangup")


async def test_in_the_newer_era_hanging_up_ends_the_command_too(service: Service) -> None:
    body = call("exec -a marker-modern sleep 60")
    body["params"]["_meta"] = modern_meta()
    headers = ("X-Chat-Id: stream", f"MCP-Protocol-Version: {MODERN}", "Mcp-Method: tools/call", "Mcp-Name: bash_tool")
    async with raw_post(service.url, body, *headers):
        await there(service, "marker-modern")
    await gone(service, "marker-modern")


class SlowAgent:
    """A coding agent that takes its time and remembers how it ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.finish = asyncio.Event()
        self.ended = asyncio.Event()
        self.outcome = ""

    async def run(self, call: Call, task: Task) -> Answer:
        self.started.set()
        try:
            await self.finish.wait()
            self.outcome = "done"
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            raise
        finally:
            self.ended.set()
        return say(f"did: {task.prompt}")


async def test_a_sub_agent_goes_on_when_the_client_hangs_up(service: Service) -> None:
    agent = SlowAgent()
    async with service_of(service.fleet, Options(sub_agent=agent)) as other:
        async with raw_post(other.url, call("a poem", tool="sub_agent"), "X-Chat-Id: stream"):
            await agent.started.wait()
        await asyncio.sleep(0.1)
        assert not agent.ended.is_set()
        agent.finish.set()
        await asyncio.wait_for(agent.ended.wait(), 60)
        assert agent.outcome == "done"


async def test_a_sub_agent_ends_when_it_is_cancelled(service: Service) -> None:
    agent = SlowAgent()
    async with service_of(service.fleet, Options(sub_agent=agent)) as other:
        running = asyncio.create_task(other.post(call("a poem", tool="sub_agent"), chat="stream"))
        await agent.started.wait()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "7"}}
        await other.post(cancel, chat="stream")
        await asyncio.wait_for(agent.ended.wait(), 60)
        assert agent.outcome == "cancelled"
        assert '"code":-32800' in (await running).text


async def test_a_sub_agent_answers_like_any_tool(service: Service) -> None:
    agent = SlowAgent()
    agent.finish.set()
    async with service_of(service.fleet, Options(sub_agent=agent)) as other:
        result = await other.call("sub_agent", {"prompt": "a poem", "model": "haiku", "max_turns": 3})
        assert result == {"content": [{"type": "text", "text": "did: a poem"}], "isError": False}


@pytest.mark.serial
async def test_many_chats_wait_side_by_side(service: Service) -> None:
    await asyncio.gather(*(service.bash("true", chat=f"many{n}") for n in range(20)))
    started = time.monotonic()
    await asyncio.gather(*(service.bash("sleep 2", chat=f"many{n}") for n in range(20)))
    assert time.monotonic() - started < 16  # two at a time it would be 20


async def test_the_first_output_does_not_wait_for_the_distance_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WINDOW", 60.0)
    sent: asyncio.Queue[str] = asyncio.Queue()

    async def send(text: str, _: float) -> None:
        sent.put_nowait(text)

    stream, call = progress.ProgressStream(send, send, flush=True), Ending()
    following = asyncio.create_task(stream.until(call))
    stream.report("first")
    async with asyncio.timeout(30):
        assert await sent.get() == "first"
    stream.report("second")
    await asyncio.sleep(4 * progress.GATHER)
    assert sent.empty()
    call.end()
    await following
    assert sent.get_nowait() == "second"
