"""The tools over HTTP, against a true service in another process. Bars are ratios or times within one run.

python -m bench.http [--driver oci|memory] [--rounds 300]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.core import host_spawn
from bench.report import Report, percentile
from bench.service import cpu_seconds, image, service

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
CHATS, SECONDS, SLEEPERS = 32, 6.0, 24


class CallFailed(Exception):
    """A call failed; the message has the end of its answer."""


class Client:
    """Calls tools; a call that fails ends the benchmark."""

    def __init__(self, address: str, http: aiohttp.ClientSession) -> None:
        self.address = address
        self.http = http
        self._ids = itertools.count(1)

    async def call(self, chat: str, tool: str, **arguments: Any) -> float:
        """Milliseconds until the whole answer is there."""
        return (await self.answer(chat, tool, **arguments))[0]

    async def answer(self, chat: str, tool: str, **arguments: Any) -> tuple[float, bytes]:
        """Milliseconds until the whole answer is there, and the answer."""
        began = time.perf_counter()
        async with self.http.post("/mcp", data=self._body(tool, arguments), headers=HEADERS | {"X-Chat-Id": chat}) as r:
            answer = await r.read()
        took = (time.perf_counter() - began) * 1000
        if b'"isError":false' not in answer:
            raise CallFailed(f"a call failed: {answer[-500:]!r}")
        return took, answer

    async def bash(self, chat: str, command: str = "true") -> float:
        return await self.call(chat, "bash_tool", command=command, description="bench")

    async def first_event(self, chat: str, command: str) -> float:
        """Milliseconds until something of the answer is there."""
        began = time.perf_counter()
        body = self._body("bash_tool", {"command": command, "description": "bench"}, {"progressToken": 1})
        async with self.http.post("/mcp", data=body, headers=HEADERS | {"X-Chat-Id": chat}) as r:
            await r.content.readline()
            took = (time.perf_counter() - began) * 1000
            await r.read()
        return took

    def _body(self, tool: str, arguments: dict[str, Any], meta: dict[str, Any] | None = None) -> bytes:
        params = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
        return json.dumps({"jsonrpc": "2.0", "id": next(self._ids), "method": "tools/call", "params": params}).encode()


async def warm(client: Client, pid: int, report: Report, rounds: int) -> None:
    """Warm `true`, turn by turn with the host's own bash."""
    for _ in range(20):
        await client.bash("warm")
    host, over_http = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        host_spawn()
        host.append((time.perf_counter() - began) * 1000)
        over_http.append(await client.bash("warm"))
    ratio = percentile(over_http, 0.5) / percentile(host, 0.5)
    report.row("host posix_spawn of bash", host)
    report.row("warm bash_tool true", over_http, bar=ratio <= 6, note=f"{ratio:.2f} x the host (bar 6)")
    before = cpu_seconds(pid)
    for _ in range(rounds):
        await client.bash("warm")
    spent = (cpu_seconds(pid) - before) * 1000 / rounds
    report.note("its cost for the service", f"{spent:.2f} ms of CPU a call")


async def files(client: Client, report: Report, rounds: int) -> None:
    path, long, short = "/home/assistant/bench.txt", "a line\n" * 150, "one\ntwo\n"
    times: dict[str, list[float]] = {"create_file": [], "view": [], "str_replace": []}

    async def timed(tool: str, **arguments: Any) -> None:
        times[tool].append(await client.call("warm", tool, path=path, description="bench", **arguments))

    for _ in range(rounds):
        await timed("create_file", content=long)
        await timed("view")
        await timed("create_file", content=short)
        await timed("str_replace", old_str="two", new_str="three")
    for tool, samples in times.items():
        report.row(tool, samples, bar=percentile(samples, 0.5) <= 8, note="bar 8 ms")


async def first_events(client: Client, report: Report) -> None:
    samples = [await client.first_event("warm", "echo a; sleep 0.5; echo b") for _ in range(10)]
    report.row("first event of a slow command", samples, bar=max(samples) <= 300, note="bar 300 ms")


async def new_chats(client: Client, report: Report, rounds: int) -> None:
    fresh, woken = [], []
    for number in range(rounds):
        await asyncio.sleep(0.7)  # the pool fills again
        fresh.append(await client.bash(f"new-{number}"))
    report.row("new chat, first command", fresh, bar=percentile(fresh, 0.5) <= 20, note="bar 20 ms, pool filled")
    for number in range(rounds):
        async with client.http.post(f"/api/sandboxes/new-{number}/stop") as r:
            assert r.status == 200, await r.text()
        woken.append(await client.bash(f"new-{number}"))
        async with client.http.delete(f"/api/sandboxes/new-{number}") as r:
            assert r.status == 204
    report.row("wake a stopped chat, first command", woken, bar=percentile(woken, 0.5) <= 100, note="bar 100 ms")


async def parallel(client: Client, pid: int, report: Report) -> None:
    """Many chats at once, while another process asks /health."""
    chats = [f"many-{number}" for number in range(CHATS)]
    await asyncio.gather(*(client.bash(chat) for chat in chats))
    end = time.perf_counter() + SECONDS

    async def work(chat: str) -> int:
        count = 0
        while time.perf_counter() < end:
            await client.bash(chat)
            count += 1
        return count

    before, began = cpu_seconds(pid), time.perf_counter()
    async with probe(client.address) as health:
        calls = sum(await asyncio.gather(*map(work, chats)))
        wall, spent = time.perf_counter() - began, cpu_seconds(pid) - before
    rate = calls / wall
    report.note(
        f"{CHATS} chats in parallel",
        f"{rate:.0f} calls a second (bar 150), none failed, {spent * 1000 / calls:.2f} ms of CPU a call",
        rate >= 150,
    )
    high = percentile(health, 0.99)
    report.row("/health meanwhile", health, bar=high <= 50, note=f"p99 {high:.1f} ms (bar 50)")


class probe:
    """Asks /health from a process of its own; the block's list holds the milliseconds when it ends."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._samples: list[float] = []

    async def __aenter__(self) -> list[float]:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.probe", self._address), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._samples

    async def __aexit__(self, *_: object) -> None:
        output, _nothing = await self._process.communicate(b"")
        self._samples += json.loads(output)


async def sleepers(client: Client, report: Report) -> None:
    """Commands that wait cost their neighbours nothing."""
    chats = [f"many-{number}" for number in range(SLEEPERS)]
    began = time.perf_counter()
    waiting = asyncio.gather(*(client.bash(chat, "sleep 2") for chat in chats))
    await asyncio.sleep(0.3)
    neighbour = []
    while not waiting.done() and time.perf_counter() - began < 1.9:
        neighbour.append(await client.bash("warm"))
        await asyncio.sleep(0.02)
    await waiting
    wall = time.perf_counter() - began
    report.note(f"{SLEEPERS} x sleep 2 in parallel", f"{wall:.2f} s (bar 2.3)", wall <= 2.3)
    middle = percentile(neighbour, 0.5)
    report.row("a neighbour's true meanwhile", neighbour, bar=middle <= 30, note="bar 30 ms")


async def measure(address: str, pid: int, report: Report, options: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, connector=connector) as http:
        client = Client(address, http)
        await warm(client, pid, report, options.rounds)
        await files(client, report, max(20, options.rounds // 5))
        await first_events(client, report)
        await new_chats(client, report, options.starts)
        await parallel(client, pid, report)
        await sleepers(client, report)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--driver", default="oci")
    parser.add_argument("--folder", default="/var/lib", help="where the state of the run lies meanwhile")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--starts", type=int, default=15)
    options = parser.parse_args()
    report = Report(f"tools over HTTP, driver {options.driver}")
    names = {"DRIVER": options.driver, "POOL_SIZE": "2"}
    if options.driver == "oci":
        names["SANDBOX_IMAGE"] = image()
    with (
        tempfile.TemporaryDirectory(prefix="cubicle-bench-", dir=options.folder) as folder,
        service(Path(folder), **names) as (address, pid),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(address, pid, report, options))
    report.show()
    raise SystemExit(0 if report.good else 1)


if __name__ == "__main__":
    main()
