"""The service as a process of its own, so that a test can kill it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import httpx

from cubicle.drivers.factory import make_driver
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.fork_server import Forked, the_server
from tests.support.free_ports import free_port as free_port

ACCEPT = "application/json, text/event-stream"
_COMMAND_SECONDS = 200.0
RunningProcess = Forked | subprocess.Popen[bytes]


class Said(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    output: str
    errors: str


def command(words: Sequence[str], environment: dict[str, str], folder: Path, *, mounts: str = "") -> Said:
    """`cubicle` with these words, forked like a service. Blocks."""
    environment = environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        files = (output, errors)
        forked = the_server().start(words, environment, folder, output.fileno(), errors=errors.fileno(), mounts=mounts)
        code = forked.wait(_COMMAND_SECONDS)
        for file in files:
            file.seek(0)
        return Said(code, *(file.read().decode() for file in files))


class ServiceProcess:
    """`cubicle serve` over one data folder; it can be killed and started again."""

    def __init__(self, data: Path, **environment: str) -> None:
        self._data = data
        self._environment = environment
        self.forked = True
        """Started by a process that has imported the product, for a quarter of what a new program takes."""
        self.prefix: list[str] = []
        """What the service is started by: `env`, say."""
        self.mounts = ""
        """The file of the mount namespace in which it is to be."""
        self.port = free_port()
        self._process: RunningProcess | None = None
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", timeout=90, trust_env=False, verify=False
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, errors: int | None = None) -> float:
        """Start it and wait until it answers; how long that took. `errors`: where its log goes, if not to a file."""
        began = time.monotonic()
        environment = os.environ | self._environment
        environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "DATA_DIR": str(self._data),
            "PORT": str(self.port),
            "LOG_FORMAT": "json",
        }
        with (self._data.parent / "service.log").open("ab") as log:
            if self.forked and not self.prefix:
                self._process = the_server().start(
                    ["serve"], environment, self._data.parent, log.fileno(), errors=errors, mounts=self.mounts
                )
            else:
                self._process = self._program(environment, log, errors)
        while True:
            if self._process.poll() is not None:
                raise AssertionError(f"the service ended: {self.log()[-3000:]}")
            try:
                if (await self.client.get("/health")).status_code == 200:
                    return time.monotonic() - began
            except httpx.TransportError:
                assert time.monotonic() - began < 150, "the service does not come up"
                await asyncio.sleep(0.05)

    def _program(self, environment: dict[str, str], log: IO[bytes], errors: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-c", "from cubicle.cli import main; main()", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log if errors is None else errors,
            start_new_session=True,
            cwd=self._data.parent,
        )

    @asynccontextmanager
    async def running(self, after: Settings) -> AsyncIterator[Self]:
        """It is up for as long as the block lasts. Then it is killed, and its sandboxes are removed by these settings."""
        try:
            await self.start()
            yield self
        finally:
            self.kill()
            await self.client.aclose()
            await empty(make_driver(after))

    def log(self) -> str:
        return (self._data.parent / "service.log").read_text(errors="replace")

    def kill(self) -> None:
        """As the kernel does when memory runs out: no goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(100)
        self._process = None

    async def bash(self, chat: str, command: str, **arguments: Any) -> tuple[bool, str]:
        """(whether it failed, what it said)."""
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "bash_tool", "arguments": {"command": command, "description": "test", **arguments}},
        }
        headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat}
        response = await self.client.post("/mcp", content=json.dumps(body), headers=headers)
        assert response.status_code == 200, response.text
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        result = json.loads(lines[-1] if lines else response.text)["result"]
        return result["isError"], result["content"][0]["text"]
