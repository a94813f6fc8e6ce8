"""SIGTERM: what runs is finished or goes on in its sandbox, what is new is refused, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle.settings import Settings
from tests.support.process import ACCEPT, RunningProcess, ServiceProcess

pytestmark = pytest.mark.real
CHATS = [f"chat-{number}" for number in range(5)]
FIRST_EVENT = "2025-11-25"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    settings = Settings(_env_file=None, driver="memory", data_dir=tmp_path / "data")  # type: ignore[call-arg]
    ours = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="0", DRAIN_SECONDS="4")
    async with ours.running(settings):
        yield ours


def body(command: str, id: int = 1) -> dict[str, Any]:
    arguments = {"command": command, "description": "test"}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "bash_tool", "arguments": arguments}}


def headers(chat: str, **more: str) -> dict[str, str]:
    return {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat, **more}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def result(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = events(response.text)[-1]["result"]
    return found


def words(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


async def session_of(service: ServiceProcess, chat: str, version: str = FIRST_EVENT) -> str:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    answer = await service.client.post("/mcp", json=begin, headers=headers(chat))
    return answer.headers["Mcp-Session-Id"]


async def lines(service: ServiceProcess, chat: str) -> list[str]:
    _, text = await service.bash(chat, "echo runs:; cat ~/runs 2>/dev/null || true")
    return text.split()[1:]


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await holds():
            await asyncio.sleep(0.1)


KINDS = ("short", "key", "resumed", "old", "plain")


class FiftyCalls:
    """Ten of each of five kinds, in five chats."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self.sessions: dict[str, str] = {}
        self.old: dict[str, str] = {}

    async def open(self) -> None:
        for chat in CHATS:
            await self.service.bash(chat, "true")
            self.sessions[chat] = await session_of(self.service, chat)
            self.old[chat] = await session_of(self.service, chat, "2025-06-18")

    def headers(self, kind: str, number: int) -> dict[str, str]:
        chat = CHATS[number % 5]
        more = {
            "key": {"Idempotency-Key": f"key-{number}"},
            "resumed": {"Mcp-Session-Id": self.sessions[chat], "MCP-Protocol-Version": FIRST_EVENT},
            "old": {"Mcp-Session-Id": self.old[chat], "MCP-Protocol-Version": "2025-06-18"},
        }
        return headers(chat, **more.get(kind, {}))

    async def send(self, kind: str, number: int) -> httpx.Response:
        name, seconds = f"{kind}{number}", 3 if kind == "short" else 15
        command = f"echo {name} >> ~/runs; echo begun; sleep {seconds}; echo end-{name} >> ~/runs; date +%N"
        return await self.service.client.post(
            "/mcp", json=body(command, number + 1), headers=self.headers(kind, number)
        )

    async def resume(self, number: int, answer: httpx.Response) -> httpx.Response:
        last = [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")][-1]
        sent = self.headers("resumed", number) | {"Last-Event-ID": last}
        return await self.service.client.get("/mcp", headers=sent)

    async def found(self) -> Counter[str]:
        return Counter([line for chat in CHATS for line in await lines(self.service, chat)])

    async def have_begun(self) -> bool:
        return len([line for line in await self.found() if "end" not in line]) == 50

    async def have_ended(self) -> bool:
        return len([line for line in await self.found() if "end" in line]) == 50


async def test_sigterm_during_fifty_calls_loses_none_and_doubles_none(service: ServiceProcess) -> None:
    fifty = FiftyCalls(service)
    await fifty.open()
    calls = {(kind, n): asyncio.create_task(fifty.send(kind, n)) for n in range(10) for kind in KINDS}
    await until(fifty.have_begun)
    process = await terminated(service)

    new = await service.client.post("/mcp", json=body("echo new >> ~/runs"), headers=headers(CHATS[0]))
    assert (new.status_code, new.headers["Retry-After"]) == (503, "15")
    told = await service.client.post("/mcp", json=body("echo new >> ~/runs", 99), headers=fifty.headers("old", 0))
    assert result(told)["isError"]
    assert "Nothing was done" in words(result(told))

    answers = {key: await call for key, call in calls.items()}
    await ended(service, process)
    for (kind, _), answer in answers.items():
        check_told(kind, answer)
    await service.start()
    for number in range(10):
        assert not result(await fifty.send("key", number))["isError"]
        assert not result(await fifty.resume(number, answers["resumed", number]))["isError"]
    await until(fifty.have_ended)
    expected = [f"{mark}{kind}{number}" for kind in KINDS for number in range(10) for mark in ("", "end-")]
    assert await fifty.found() == dict.fromkeys(expected, 1)


def check_told(kind: str, answer: httpx.Response) -> None:
    """What the caller of a call of this kind was told when the service stopped."""
    if kind == "short":
        assert not result(answer)["isError"], answer.text
    elif kind == "resumed":
        assert all("result" not in event and "error" not in event for event in events(answer.text)), answer.text
        assert "retry: 15000" in answer.text
    else:
        assert result(answer)["isError"]
        assert words(result(answer)).startswith("begun\n")
        assert "it goes on in the sandbox" in words(result(answer)).replace("\n", " ")


async def terminated(service: ServiceProcess) -> RunningProcess:
    """Told to end, and draining."""
    process = service._process
    assert process is not None
    process.send_signal(signal.SIGTERM)

    async def refuses() -> bool:
        return (await service.client.get("/health")).status_code == 503

    await until(refuses)
    return process


async def ended(service: ServiceProcess, process: RunningProcess) -> None:
    assert await asyncio.to_thread(process.wait, 60) == 0
    service._process = None


async def test_without_anything_to_finish_the_service_ends_at_once(service: ServiceProcess) -> None:
    await service.bash("one", "true")
    process = service._process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 3) == 0
    service._process = None


async def test_a_second_signal_ends_the_wait_and_the_command_goes_on(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, driver="memory", data_dir=tmp_path / "data")  # type: ignore[call-arg]
    service = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="0", DRAIN_SECONDS="3600")
    async with service.running(settings):
        call = asyncio.create_task(service.bash("one", "echo begun >> ~/runs; sleep 8; echo end >> ~/runs"))

        async def begun() -> bool:
            return await lines(service, "one") == ["begun"]

        await until(begun)
        process = await terminated(service)
        process.send_signal(signal.SIGTERM)
        failed, text = await call
        assert failed
        assert "it goes on in the sandbox" in text
        await ended(service, process)
        await service.start()

        async def goes_on() -> bool:
            return await lines(service, "one") == ["begun", "end"]

        await until(goes_on)
        assert "a call ended that nobody followed" in service.log()


async def test_an_upload_under_way_is_finished_and_a_new_one_refused(service: ServiceProcess) -> None:
    more = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield b"a" * 100_000
        await more.wait()
        yield b"b" * 100_000

    upload = asyncio.create_task(service.client.put("/api/uploads/one/file.bin", content=content()))

    async def started() -> bool:
        return not (await service.bash("one", "true"))[0]

    await until(started)
    process = await terminated(service)
    assert (await service.client.put("/api/uploads/one/other.bin", content=b"x")).status_code == 503
    more.set()
    answer = await upload
    assert (answer.status_code, answer.json()["size"]) == (201, 200_000)
    await ended(service, process)
