"""One worker against several over HTTP, turn by turn in one run: calls per second of many chats, and one chat alone.

python -m bench.workers [--driver oci|memory] [--workers 2] [--turns 6] [--seconds 3]

The client takes little time itself: it writes the bytes of a request and looks for the end of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import uvloop

from bench.report import Report, percentile
from bench.service import image, service

CHATS = 32
GROWS = 1.4
"""Calls per second of two workers against one."""
SAME = 1.15
"""The median of a call in a chat alone against that of one worker: what two services beside each other differ by."""
_ENDS = (b"\r\n0\r\n\r\n",)
_ids = itertools.count(1)


class Chat(asyncio.Protocol):
    """One connection that calls a tool of one chat again and again."""

    def __init__(self, chat: str, tool: str, arguments: dict[str, object]) -> None:
        self._chat, self._tool, self._arguments = chat, tool, arguments
        self._transport: asyncio.Transport
        self._port = 0
        self._answer = bytearray()
        self._done: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._port = transport.get_extra_info("peername")[1]

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._done is not None and self._is_whole():
            self._done.set_result(bytes(self._answer))
            self._done = None

    def _is_whole(self) -> bool:
        """By its chunks, or by the length that it names."""
        head, gap, body = self._answer.partition(b"\r\n\r\n")
        _, named, length = head.lower().partition(b"\r\ncontent-length:")
        if gap and named:
            return len(body) >= int(length.split(b"\r\n")[0])
        return self._answer.endswith(_ENDS)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None:
            self._done.set_exception(exc or ConnectionResetError())

    async def call(self) -> float:
        """Milliseconds until the whole answer is there."""
        params = {"name": self._tool, "arguments": self._arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": next(_ids), "method": "tools/call", "params": params}).encode()
        lines = ["POST /mcp HTTP/1.1", "Host: 127.0.0.1", "Accept: application/json, text/event-stream"]
        lines += ["Content-Type: application/json", f"X-Chat-Id: {self._chat}", f"Content-Length: {len(body)}", "", ""]
        self._answer.clear()
        loop = asyncio.get_running_loop()
        if self._transport.is_closing():  # the service ends connections that are idle
            await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        self._done = done = loop.create_future()
        began = time.perf_counter()
        self._transport.write("\r\n".join(lines).encode() + body)
        answer = await done
        if b'"isError":false' not in answer:
            raise SystemExit(f"a call failed: {answer[-500:]!r}")
        return (time.perf_counter() - began) * 1000

    def close(self) -> None:
        self._transport.close()


async def opened(address: str, count: int, tool: str, arguments: dict[str, object]) -> list[Chat]:
    """So many chats, each on a connection of its own, with a sandbox that is up."""
    loop, port = asyncio.get_running_loop(), int(address.rpartition(":")[2])
    chats = []
    for number in range(count):
        _, chat = await loop.create_connection(
            lambda name=f"bench-{number}": Chat(name, "bash_tool", {"command": "echo x > f", "description": "bench"}),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        await chat.call()
        chat._tool, chat._arguments = tool, arguments
        await chat.call()
        chats.append(chat)
    return chats


async def busy(chats: Sequence[Chat], seconds: float) -> float:
    """Calls per second of all."""
    ends, count = time.perf_counter() + seconds, 0

    async def work(chat: Chat) -> None:
        nonlocal count
        while time.perf_counter() < ends:
            await chat.call()
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*map(work, chats))
    return count / (time.perf_counter() - began)


TOOLS: dict[str, dict[str, object]] = {
    "view": {"path": "/home/assistant/f", "description": "bench"},
    "bash_tool": {"command": "true", "description": "bench"},
}


async def compare(addresses: Sequence[str], names: Sequence[str], report: Report, turns: int, seconds: float) -> None:
    for tool, arguments in TOOLS.items():
        groups = [await opened(address, CHATS, tool, arguments) for address in addresses]
        alone: list[list[float]] = [[], []]
        for _ in range(turns * 50):
            for group, samples in zip(groups, alone, strict=True):
                samples.append(await group[0].call())
        ratio = percentile(alone[1], 0.5) / percentile(alone[0], 0.5)
        report.row(f"{tool}, one chat, {names[0]}", alone[0])
        report.row(f"{tool}, one chat, {names[1]}", alone[1], bar=ratio <= SAME, note=f"{ratio:.2f} x (bar {SAME})")
        rates: list[list[float]] = [[], []]
        for _ in range(turns):
            for group, found in zip(groups, rates, strict=True):
                found.append(await busy(group, seconds))
        # The machine is not ours alone: each turn is compared with the one beside it.
        grown = percentile([two / one for one, two in zip(*rates, strict=True)], 0.5)
        for name, found in zip(names, rates, strict=True):
            report.note(f"{tool}, {CHATS} chats, {name}", f"{percentile(found, 0.5):.0f} calls per second")
        bar = grown >= GROWS if tool == "view" else None  # a command costs more outside the service than in it
        report.note(f"{tool}, {CHATS} chats", f"{grown:.2f} x (bar {GROWS} for view)", bar)
        for group in groups:
            for chat in group:
                chat.close()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--driver", default="oci", choices=["oci", "memory"])
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--turns", type=int, default=6)
    options.add_argument("--seconds", type=float, default=3.0)
    chosen = options.parse_args()
    report = Report("Workers")
    names = {"DRIVER": chosen.driver, **({"SANDBOX_IMAGE": image()} if chosen.driver == "oci" else {})}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        first, second = Path(one), Path(many)
        with (
            service(first, **names) as (single, _),
            service(second, **names, WORKERS=str(chosen.workers)) as (several, parent),
        ):
            _wait_for_workers(parent, chosen.workers)
            labels = ("1 worker", f"{chosen.workers} workers")
            try:
                uvloop.run(compare((single, several), labels, report, chosen.turns, chosen.seconds))
            except BaseException:
                for folder in (first, second):
                    sys.stderr.write(f"{folder}:\n{(folder / 'log').read_text(errors='replace')[-4000:]}\n")
                raise
    report.show()
    return 0 if report.good else 1


def _wait_for_workers(parent: int, count: int) -> None:
    """Until all of them listen."""
    for _ in range(600):
        children = [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        if len(children) == count and all(_listens(child) for child in children):
            return
        time.sleep(0.1)
    raise SystemExit("the workers do not start")


def _listens(pid: int) -> bool:
    """Whether it has a socket that waits for connections."""
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(path.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                return True
    return False


if __name__ == "__main__":
    sys.exit(main())
