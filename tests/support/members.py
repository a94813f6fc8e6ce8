"""Workers of one service as processes of their own, each on a port of its own, so that a test can choose whom it asks."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from cubicle.drivers.factory import make_driver
from cubicle.members import disk_records
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.fork_server import Forked, the_server
from tests.support.process import ACCEPT, free_port

_READY_SECONDS = 180.0
_END_SECONDS = 300.0


class Worker:
    """One worker, without a parent that would start it again."""

    def __init__(self, slot: int, told: dict[str, Any], data: Path, environment: dict[str, str]) -> None:
        self.slot = slot
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._told = {**told, "slot": slot, "given": {"port": self.port}}
        self._data = data
        self._environment = environment
        self._process: Forked | None = None
        self._parent: int | None = None
        """As long as this is open, the worker has a parent."""
        self.client = httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, *, first: bool = False) -> Self:
        reading, writing = os.pipe()
        told, self._parent = os.pipe()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | self._environment
        environment |= {"DATA_DIR": str(self._data), "LOG_FORMAT": "json"}
        with (self._data.parent / f"worker-{self.slot}.log").open("ab") as log:
            self._process = await asyncio.to_thread(
                lambda: the_server().start_worker(environment, self._data.parent, log.fileno(), told, writing)
            )
        os.close(writing)
        os.close(told)
        os.write(self._parent, json.dumps({**self._told, "first": first}).encode() + b"\n")
        async with asyncio.timeout(_READY_SECONDS):
            ready = await asyncio.to_thread(os.read, reading, 1)
        os.close(reading)
        assert ready, f"the worker ended: {self.log()[-3000:]}"
        return self

    def log(self) -> str:
        return (self._data.parent / f"worker-{self.slot}.log").read_text(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    @property
    def name(self) -> str:
        """As a member."""
        return str([line["member"] for line in self.events() if line["event"] == "a worker serves"][-1])

    async def end(self, number: int = signal.SIGKILL) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = await asyncio.to_thread(self._process.wait, _END_SECONDS)
        if self._parent is not None:
            os.close(self._parent)
            self._parent = None
        return code

    async def ask(self, chat: str, method: str, params: dict[str, Any], **headers: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        sent = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat} | headers
        return await self.client.post("/mcp", content=json.dumps(body), headers=sent)

    async def bash(self, chat: str, command: str, **headers: str) -> str:
        """What it prints; it must not fail."""
        arguments = {"command": command, "description": "test"}
        result = answer_of(await self.ask(chat, "tools/call", {"name": "bash_tool", "arguments": arguments}, **headers))
        assert not result["result"]["isError"], result
        return str(result["result"]["content"][0]["text"])


def answer_of(response: httpx.Response) -> dict[str, Any]:
    """The last JSON-RPC message of an answer."""
    assert response.status_code == 200, f"{response.status_code} {response.text}"
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    found: dict[str, Any] = json.loads(lines[-1] if lines else response.text)
    return found


@asynccontextmanager
async def workers(folder: Path, count: int = 2, **environment: str) -> AsyncIterator[Sequence[Worker]]:
    """So many workers over one DATA_DIR; at the end they are killed, and their sandboxes are gone."""
    data = folder / "data"
    await asyncio.to_thread(disk_records.prepare, data)
    environment = {"DRIVER": "memory", "POOL_SIZE": "0", "EGRESS": "none"} | environment
    told = {"slots": count, "secret": secrets.token_hex(32)}
    found = [Worker(slot, told, data, environment) for slot in range(1, count + 1)]
    try:
        await found[0].start(first=True)
        await asyncio.gather(*(worker.start() for worker in found[1:]))
        yield found
    finally:
        for worker in found:
            if worker._process is not None:
                await worker.end()
            await worker.client.aclose()
        settings = Settings(_env_file=None, data_dir=data, driver=environment["DRIVER"])  # type: ignore[call-arg]
        await empty(make_driver(settings))


def secret_of(worker: Worker) -> bytes:
    return bytes.fromhex(worker._told["secret"])
