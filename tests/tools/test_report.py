"""However a call ends, those who watch are told how and why, also when output was shown before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cubicle.chat.activity import Activity
from cubicle.core.chat import Chat
from cubicle.core.network import NetworkMode
from cubicle.drivers.memory import MemoryDriver
from cubicle.egress.policy import Policy
from cubicle.guest.operations import Exit
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.tools import registry
from cubicle.tools.base import Answer, Call, ImageContent, TextContent
from cubicle.tools.sub_agent import Task
from tests.support.service import Options, Service, raw_post, service_of
from tests.tools.test_bash import EgressProxy  # type: ignore[attr-defined]

LIMIT = 60


def request(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def bash(command: str, **more: Any) -> dict[str, Any]:
    return request("bash_tool", {"command": command, "description": "test", **more})


def activity_of(service: Service) -> Activity:
    return service.door._registry.activity


async def told(service: Service, chat: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first event of the chat that is so."""
    async with asyncio.timeout(LIMIT):
        async for event in activity_of(service).follow(Chat(chat)):
            if event is not None and wanted(event.fields):  # type: ignore[arg-type]
                return event.fields  # type: ignore[return-value]
    raise AssertionError


async def end_of(service: Service, chat: str) -> dict[str, Any]:
    return await told(service, chat, lambda fields: fields["type"] == "end")


@pytest.mark.parametrize(
    ("command", "options", "ending"),
    [
        ("echo out", {}, {"ending": "done", "error": False, "exit_code": 0, "notes": [], "result": ""}),
        ("echo out; exit 3", {}, {"ending": "failed", "error": True, "exit_code": 3, "notes": ["[exit code 3]"]}),
        ("exit 4", {}, {"ending": "failed", "exit_code": 4}),
        ("echo out; grep x /dev/null", {}, {"ending": "done", "error": False, "exit_code": 1}),
        ("echo out; sleep 60", {"timeout": 1}, {"ending": "timed_out", "error": True}),
        ("echo out; kill -SEGV $$", {}, {"ending": "killed", "error": True, "signal": "SIGSEGV"}),
    ],
)
async def test_a_command(
    service: Service, command: str, options: dict[str, Any], ending: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    chat = f"end-{abs(hash(request.node.name))}"
    await service.post(bash(command, **options), chat=chat)
    end = await end_of(service, chat)
    assert end.items() >= ending.items()
    assert ("exit_code" in end) == ("exit_code" in ending)
    if command.startswith("echo out"):
        output = await told(service, chat, lambda fields: fields["type"] == "output")
        assert output["text"] == "out\n"
    if ending["ending"] == "timed_out":
        assert end["notes"][0].startswith("[timed out after 1 s]")
    if ending["ending"] == "killed":
        assert end["notes"][0].startswith("[killed by SIGSEGV]")


async def test_what_the_egress_proxy_refused_is_told_beside_the_output(tmp_path: Path) -> None:
    proxy = EgressProxy(Policy(NetworkMode.ALLOWLIST), folder=tmp_path / "egress")
    fleet = Fleet(MemoryDriver(tmp_path), ChatIndex(tmp_path / "chats"), pool_size=0, sandbox_services=[proxy.attached])
    async with proxy, fleet, service_of(fleet) as service:
        try:
            await service.post(bash("echo before; curl -s https://api.example/; false"), chat="egress")
            end = await end_of(service, "egress")
        finally:
            await fleet.remove(Chat("egress"))
    assert end["notes"][0] == "[exit code 1]"
    assert "denied api.example:443" in end["notes"][1]


@pytest.mark.parametrize(
    ("tool", "arguments", "ending", "words"),
    [
        ("view", {"path": "/tmp/missing"}, "failed", "/tmp/missing does not exist"),
        ("view", {}, "failed", "`path`"),
        ("create_file", {"path": "/home/assistant/made", "content": "x"}, "done", "Created /home/assistant/made"),
        ("create_file", {"path": "/etc/passwd", "content": "x"}, "failed", "outside the allowed folders"),
        ("str_replace", {"path": "/tmp/missing", "old_str": "a", "new_str": "b"}, "failed", "does not exist"),
        ("sub_agent", {"prompt": "a poem"}, "failed", "sub_agent is not set up"),
        ("bash_tool", {"command": "true", "description": "x", "cwd": "/missing"}, "failed", "cannot be entered"),
    ],
)
async def test_the_other_tools(
    service: Service, tool: str, arguments: dict[str, Any], ending: str, words: str, request: pytest.FixtureRequest
) -> None:
    chat = f"end-{abs(hash(request.node.name))}"
    await service.call(tool, arguments, chat=chat)
    end = await end_of(service, chat)
    assert end["ending"] == ending
    assert words in end["result"]


async def running(service: Service, chat: str) -> None:
    """Wait until output was shown."""
    await told(service, chat, lambda fields: fields["type"] == "output")


async def test_a_call_that_is_cancelled(service: Service) -> None:
    call = asyncio.create_task(service.post(bash("echo out; sleep 60"), chat="end-cancel"))
    await running(service, "end-cancel")
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    await service.post(cancel, chat="end-cancel")
    end = await end_of(service, "end-cancel")
    assert (end["ending"], end["error"]) == ("cancelled", True)
    assert "cancelled" in end["result"]
    await call


async def test_a_client_that_disconnects(service: Service) -> None:
    async with raw_post(service.url, bash("echo out; sleep 60"), "X-Chat-Id: end-left"):
        await running(service, "end-left")
    end = await end_of(service, "end-left")
    assert end["ending"] == "disconnected"
    assert "disconnected" in end["result"]


async def test_a_sandbox_that_goes_away(service: Service) -> None:
    call = asyncio.create_task(service.post(bash("echo out; sleep 60"), chat="end-gone"))
    await running(service, "end-gone")
    await service.fleet.remove(Chat("end-gone"))
    end = await end_of(service, "end-gone")
    assert end["ending"] == "sandbox_gone"
    assert "The sandbox could not do this" in end["result"]
    await call


class Agent:
    """A coding agent that talks while it works."""

    def __init__(self, answer: Answer | Exception) -> None:
        self._answer = answer

    async def run(self, call: Call, task: Task) -> Answer:
        call.report("reading…\n")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@asynccontextmanager
async def agent_of(service: Service, answer: Answer | Exception) -> AsyncIterator[Service]:
    async with service_of(service.fleet, Options(sub_agent=Agent(answer))) as other:
        yield other


async def test_what_a_coding_agent_answers_is_told_beside_what_it_said_on_the_way(service: Service) -> None:
    answer = Answer(
        (TextContent("Done.\n\n[timed out after 5 s]"),), error=True, exit=Exit(signal=15, timed_out=True, seconds=5.0)
    )
    async with agent_of(service, answer) as other:
        await other.call("sub_agent", {"prompt": "x"}, chat="end-agent")
        end = await end_of(other, "end-agent")
        output = await told(other, "end-agent", lambda fields: fields["type"] == "output")
    assert end["ending"] == "timed_out"
    assert end["result"] == "Done.\n\n[timed out after 5 s]"
    assert output["text"] == "reading…\n"


async def test_a_tool_that_breaks_is_not_said_to_be_cancelled(service: Service) -> None:
    async with agent_of(service, ZeroDivisionError("a fault of the service")) as other:
        await other.post(request("sub_agent", {"prompt": "x"}), chat="end-broken")
        end = await end_of(other, "end-broken")
    assert end["ending"] == "failed"
    assert end["result"] == "The service failed here: its log says why."


def test_memory_that_ran_out_and_pictures() -> None:
    exit = Exit(code=137, out_of_memory=True, seconds=1.0)
    end = registry._end(Answer((TextContent("…"),), error=True, exit=exit, notes=("[killed: out of memory]",)))
    assert (end.ending, end.notes, end.result) == ("out_of_memory", ("[killed: out of memory]",), "")
    assert registry._end(Answer((ImageContent(b"1234", "image/png"),))).result == "[image/png, 4 bytes]"
