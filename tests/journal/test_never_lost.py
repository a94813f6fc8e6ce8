"""Calls under random kill -9 of the service and random cuts of their connections: each is done once, and answered.

CUBICLE_LONG=1 makes 1,000 of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle import settings
from cubicle.images.store import ImageStore
from tests.drivers.makers import some_base
from tests.support.process import ACCEPT, ServiceProcess

LONG = bool(os.environ.get("CUBICLE_LONG"))
CALLS, KILLS, CHATS, AT_ONCE = (1000, 40, 8, 16) if LONG else (60, 4, 3, 8)
_PATIENCE = 2400.0 if LONG else 240.0

MEMORY = pytest.param({"DRIVER": "memory"}, id="memory")
OCI = pytest.param({"DRIVER": "oci"}, id="oci", marks=[pytest.mark.oci, pytest.mark.real])
DOCKER = pytest.param({"DRIVER": "docker"}, id="docker", marks=[pytest.mark.docker, pytest.mark.real, pytest.mark.long])


@dataclass
class Run:
    """Everything that happens in one test."""

    service: ServiceProcess
    luck: random.Random = field(default_factory=lambda: random.Random(19))
    left: int = CALLS
    tries: int = 0
    cuts: int = 0
    kills: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, number: int) -> str:
        """One call, tried with the same key until there is an answer."""
        chat = f"chat-{number % CHATS}"
        seconds = self.luck.choice(("0", "0.1", "0.4", "1.5"))
        command = f"echo {number} >> ~/done; echo begun-{number}; sleep {seconds}; echo ended-{number}"
        while True:
            await self.up.wait()
            self.tries += 1
            try:
                async with asyncio.timeout(60):
                    return await self._try(chat, f"call-{number}", number, command)
            except (httpx.TransportError, TimeoutError, ConnectionError):
                await asyncio.sleep(0.05)

    async def _try(self, chat: str, key: str, number: int, command: str) -> str:
        params = {
            "name": "bash_tool",
            "arguments": {"command": command, "description": "test"},
            "_meta": {"progressToken": number},
        }
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat, "Idempotency-Key": key}
        cut = self.luck.random() < 0.3
        stream = self.service.client.stream("POST", "/mcp", content=json.dumps(body), headers=headers)
        async with stream as response:
            if response.status_code != 200:
                raise ConnectionError(response.status_code)
            last: dict[str, Any] = {}
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    last = json.loads(line[6:])
                    if cut and "result" not in last:  # in the middle of the command
                        self.cuts += 1
                        raise ConnectionError
        if "result" not in last:
            raise ConnectionError(last)
        if cut:  # the answer is lost on its way
            self.cuts += 1
            raise ConnectionError
        assert not last["result"]["isError"], last
        return str(last["result"]["content"][0]["text"])

    async def kill_now_and_then(self) -> None:
        while self.kills < KILLS:
            await asyncio.sleep(self.luck.uniform(0.5, 4.0))
            self.up.clear()
            if self.luck.random() < 0.75:
                self.service.kill()
            else:
                await asyncio.to_thread(self.service.stop)  # SIGTERM, as an upgrade does
            self.kills += 1
            await self.service.start()
            self.up.set()

    async def all(self) -> list[str]:
        """The answers of all calls."""
        free = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> str:
            async with free:
                return await self.call(number)

        self.up.set()
        async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
            killing = group.create_task(self.kill_now_and_then())
            calls = [group.create_task(one(number)) for number in range(CALLS)]
            await asyncio.wait(calls)
            await killing
        return [call.result() for call in calls]


@pytest.fixture
def options(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of the service. Blocks."""
    usual = {"POOL_SIZE": "0", "SANDBOX_MEMORY_MB": "256", "SANDBOX_DISK_MB": "200", "RESUME_SECONDS": "40"}
    if request.param["DRIVER"] != "memory":
        usual["SANDBOX_IMAGE"] = some_base(ImageStore(settings.load().image_dir)).digest
    return usual | request.param


@pytest.fixture
async def service(tmp_path: Path, options: dict[str, str]) -> AsyncIterator[ServiceProcess]:
    given: dict[str, Any] = {"data_dir": tmp_path / "data", "driver": options["DRIVER"]}
    if "SANDBOX_IMAGE" in options:
        given["sandbox_image"] = options["SANDBOX_IMAGE"]
    async with ServiceProcess(tmp_path / "data", **options).running(settings.load(**given)) as service:
        yield service


@pytest.mark.timeout(3000 if LONG else 600)
@pytest.mark.parametrize("options", [MEMORY, OCI, DOCKER], indirect=True)
async def test_no_call_is_lost_and_none_is_done_twice(service: ServiceProcess) -> None:
    run = Run(service)
    answers = await run.all()
    assert answers == [f"begun-{number}\nended-{number}\n" for number in range(CALLS)]
    assert run.kills >= KILLS
    assert run.cuts > CALLS // 10
    done: list[int] = []
    for chat in range(CHATS):
        _, said = await service.bash(f"chat-{chat}", "cat ~/done; pgrep -c -x sleep >&2 || true")
        *numbers, asleep = said.split()
        done += map(int, numbers)
        assert asleep == "0", f"processes are left in chat {chat}"
    assert sorted(done) == list(range(CALLS))
