"""A hundred new chats at once, each with `node -v` as its first command, while neighbours call. Root.

python -m bench.burst [--chats 100] [--rounds 3]

In turns in one run: from a pool as it is before anybody came, from one that has seen such a burst, and the same command
in chats that are up, which is the floor. The neighbours are another process with chats and a tenant of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop

from bench.http import Client
from bench.report import Report, percentile
from bench.service import cpu_seconds, image, service

COMMAND = "node -v"
NEIGHBOURS = 4
FILL_SECONDS = 120.0
KEYS = {"bench": "bench-key-of-the-burst", "neighbour": "bench-key-of-neighbours"}


@dataclass
class Burst:
    """What one burst took; the samples are sorted."""

    answers: list[float]
    neighbours: list[float] = field(default_factory=list)
    machine_cpu: float = 0.0
    service_cpu: float = 0.0

    def first(self, count: int) -> float:
        """Milliseconds until so many had their answer."""
        return self.answers[min(count, len(self.answers)) - 1]


def busy_seconds() -> float:
    """The processor time of the whole machine, that of the hypervisor's other guests left out."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def session(address: str, tenant: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
    async with aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=0), headers=headers) as http:
        yield Client(address, http)


async def neighbour(address: str) -> list[float]:
    """Warm calls, one after the other in each chat, until the standard input ends."""
    samples: list[float] = []
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with session(address, "neighbour") as client:

        async def call(chat: str) -> None:
            while not ended.done():
                samples.append(await client.bash(chat))
                await asyncio.sleep(0.02)

        for number in range(NEIGHBOURS):
            await client.bash(f"neighbour-{number}")
        print("ready", flush=True)
        await asyncio.gather(*(call(f"neighbour-{number}") for number in range(NEIGHBOURS)))
    return samples


async def burst(client: Client, pid: int, prefix: str, chats: int) -> Burst:
    """All at once; a call that fails ends the benchmark."""
    argv = (sys.executable, "-m", "bench.burst", "--neighbour", client.address)
    beside = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert beside.stdout is not None
    assert await beside.stdout.readline() == b"ready\n"
    machine, of_service = busy_seconds(), cpu_seconds(pid)
    answers = sorted(await asyncio.gather(*(client.bash(f"{prefix}-{number}", COMMAND) for number in range(chats))))
    result = Burst(answers, [], busy_seconds() - machine, cpu_seconds(pid) - of_service)
    said, _ = await beside.communicate(b"")
    result.neighbours = json.loads(said)
    return result


async def remove(client: Client, prefix: str, chats: int) -> None:
    for number in range(chats):
        async with client.http.delete(f"/api/sandboxes/{prefix}-{number}") as r:
            assert r.status == 204, await r.text()


async def pool(client: Client) -> tuple[int, int]:
    """Blank sandboxes that are up, and that are wanted."""
    async with client.http.get("/metrics") as r:
        text = await r.text()
    figures = dict(re.findall(r"^cubicle_pool_(ready|size)(?:{.*})? ([0-9.e+]+)$", text, re.MULTILINE))
    return int(float(figures["ready"])), int(float(figures["size"]))


async def filled(client: Client) -> tuple[int, float]:
    """Wait until the pool has what it wants; how many, and the seconds that it took."""
    began = time.monotonic()
    while True:
        ready, wanted = await pool(client)
        took = time.monotonic() - began
        if ready >= wanted or took > FILL_SECONDS:
            return ready, took
        await asyncio.sleep(0.2)


def add(report: Report, name: str, result: Burst, bar: bool | None, note: str) -> None:
    report.row(name, result.answers, bar, note)
    chats = len(result.answers)
    each = f"{result.machine_cpu * 1000 / chats:.0f} ms of CPU a chat, {result.service_cpu * 1000 / chats:.1f} of it"
    least = result.machine_cpu / (os.cpu_count() or 1)
    report.note("", f"{each} the service's own; all processors busy: {least:.2f} s")
    high = percentile(result.neighbours, 0.99)
    report.row("  neighbours' true meanwhile", result.neighbours, high <= 50, f"p99 {high:.1f} ms (bar 50)")


async def cold(address: str, pid: int, options: argparse.Namespace, report: Report) -> None:
    async with session(address, "bench") as client:
        await filled(client)
        found = await burst(client, pid, "cold", options.chats)
        half = found.first(50) / 1000
        add(report, "new chats, cold pool of 2", found, half <= 2, f"first 50 in {half:.2f} s (bar 2)")
        again = await burst(client, pid, "cold", options.chats)
        add(report, "chats that are up (the floor)", again, None, f"all in {again.answers[-1] / 1000:.2f} s")
        await remove(client, "cold", options.chats)


async def warmed(address: str, pid: int, options: argparse.Namespace, report: Report) -> None:
    async with session(address, "bench") as client:
        await burst(client, pid, "first", options.chats)
        await remove(client, "first", options.chats)
        for number in range(options.rounds):
            ready, took = await filled(client)
            found = await burst(client, pid, f"warmed-{number}", options.chats)
            half, last = percentile(found.answers, 0.5), found.answers[-1] / 1000
            filling = f"{ready} were ready after {took:.0f} s; all in {last:.2f} s (bar p50 400 ms)"
            add(report, "new chats, warmed pool", found, half <= 400, filling)
            await remove(client, f"warmed-{number}", options.chats)


def started(folder: Path, options: argparse.Namespace) -> AbstractContextManager[tuple[str, int]]:
    folder.mkdir()
    keys = folder / "keys.json"
    keys.write_text(json.dumps({KEYS["neighbour"]: "neighbour"}))
    names = {"DRIVER": options.driver, "POOL_SIZE": "2", "MCP_API_KEY": KEYS["bench"], "API_KEYS_FILE": str(keys)}
    if options.driver == "oci":
        names |= {"SANDBOX_IMAGE": image(), "OCI_RUNTIME": options.runtime}
    return service(folder, **names)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", default="/var/lib", help="where the state of the run lies meanwhile")
    parser.add_argument("--chats", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--driver", default="oci")
    parser.add_argument("--runtime", default="")
    parser.add_argument("--neighbour", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.neighbour:
        print(json.dumps(asyncio.run(neighbour(options.neighbour))))
        return
    report = Report(f"{options.chats} new chats at once, {COMMAND}")
    with (
        tempfile.TemporaryDirectory(prefix="cubicle-bench-", dir=options.folder) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        for measure in (cold, warmed):
            with started(Path(folder) / measure.__name__, options) as (address, pid):
                runner.run(measure(address, pid, options, report))
    report.show()
    raise SystemExit(0 if report.good else 1)


if __name__ == "__main__":
    main()
