"""Takes the samples of bench/figures.py from true services over HTTP: one run of one side."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from bench.core import used_memory
from bench.http import CallFailed, Client
from bench.service import cpu_clock, service
from bench.side import ROOT, Side

Samples = dict[str, list[float]]
_NODE = re.compile(rb"v\d+\.\d+")
_FILL_SECONDS = 120.0
_NEIGHBOUR_SECONDS = 120.0


@dataclass(frozen=True)
class Terms:
    """How much is measured in one run."""

    driver: str = "oci"
    image: str = ""
    folder: str = "/var/lib"
    rounds: int = 300
    starts: int = 15
    chats: int = 32
    seconds: float = 5.0
    sleepers: int = 64
    burst: int = 100
    idle: int = 50
    command: str = "node -v"
    """What a new chat of the burst runs."""

    def settings(self, pool: int) -> dict[str, str]:
        names = {"DRIVER": self.driver, "POOL_SIZE": str(pool)}
        return names | ({"SANDBOX_IMAGE": self.image} if self.image else {})


@dataclass
class Bench:
    """One service, and what is found of it."""

    client: Client
    pid: int
    terms: Terms
    found: Samples

    async def delete(self, chats: list[str]) -> None:
        async def one(chat: str) -> None:
            async with self.client.http.delete(f"/api/sandboxes/{chat}") as answer:
                assert answer.status in (204, 404), await answer.text()

        await asyncio.gather(*map(one, chats))

    async def pool_filled(self, looks: int = 3) -> None:
        """Until as many blank sandboxes are up as are wanted, at so many looks in a row."""
        held, end = 0, time.monotonic() + _FILL_SECONDS
        while held < looks and time.monotonic() < end:
            await asyncio.sleep(0.1)
            async with self.client.http.get("/metrics") as answer:
                figures = dict(
                    re.findall(r"^cubicle_(pool_\w+)(?:{.*})? ([\d.e+]+)$", await answer.text(), re.MULTILINE)
                )
            held = held + 1 if float(figures.get("pool_ready", 0)) >= float(figures.get("pool_size", 0)) else 0


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[Client]:
    """With as many connections as it likes, and none that waits for a name."""
    async with aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=0)) as http:
        yield Client(address, http)


async def warm(bench: Bench) -> None:
    client, rounds = bench.client, bench.terms.rounds
    for _ in range(20):
        await client.bash("warm")
    before = cpu_clock(bench.pid)
    bench.found["warm_call"] += [await client.bash("warm") for _ in range(rounds)]
    bench.found["cpu_call"].append((cpu_clock(bench.pid) - before) * 1000 / rounds)


async def first_events(bench: Bench) -> None:
    for _ in range(min(10, bench.terms.starts)):
        bench.found["first_event"].append(await bench.client.first_event("warm", "echo a; sleep 0.5; echo b"))


async def new_chats(bench: Bench) -> None:
    """From the pool, one at a time, each when the pool is full again; then stopped, and woken."""
    for key, command in (("new_pooled", "true"), ("node_one", bench.terms.command)):
        chats = [f"{key}-{number}" for number in range(bench.terms.starts)]
        for chat in chats:
            await bench.pool_filled()
            bench.found[key].append(await bench.client.bash(chat, command))
        if key == "new_pooled":
            await _wakes(bench, chats)
        await bench.delete(chats)


async def _wakes(bench: Bench, chats: list[str]) -> None:
    for chat in chats:
        async with bench.client.http.post(f"/api/sandboxes/{chat}/stop") as answer:
            assert answer.status == 200, await answer.text()
        bench.found["wake"].append(await bench.client.bash(chat))


async def parallel(bench: Bench) -> None:
    chats = [f"many-{number}" for number in range(bench.terms.chats)]
    await asyncio.gather(*map(bench.client.bash, chats))
    end = time.perf_counter() + bench.terms.seconds

    async def work(chat: str) -> int:
        count = 0
        while time.perf_counter() < end:
            await bench.client.bash(chat)
            count += 1
        return count

    began = time.perf_counter()
    calls = sum(await asyncio.gather(*map(work, chats)))
    bench.found["parallel"].append(calls / (time.perf_counter() - began))


async def sleepers(bench: Bench) -> None:
    chats = [f"many-{number}" for number in range(bench.terms.sleepers)]
    await asyncio.gather(*map(bench.client.bash, chats))
    began = time.perf_counter()
    await asyncio.gather(*(bench.client.bash(chat, "sleep 2") for chat in chats))
    bench.found["sleepers"].append((time.perf_counter() - began) * 1000)


async def cold_chats(bench: Bench) -> None:
    chats = [f"cold-{number}" for number in range(bench.terms.starts)]
    for chat in chats:
        bench.found["new_cold"].append(await bench.client.bash(chat))


async def idle_memory(bench: Bench) -> None:
    """What chats take of the host's memory that made one call: sandbox, guest, and the service's share."""
    before = used_memory()
    for number in range(bench.terms.idle):
        await bench.client.bash(f"idle-{number}")
    await asyncio.sleep(1)
    bench.found["idle_memory"].append((used_memory() - before) / bench.terms.idle)


async def bursts(bench: Bench) -> None:
    """New chats all at once, as the public leaderboard does it; then once more when the pool is filled again."""
    await bench.client.bash("neighbour")
    for key in ("burst_cold", "burst_warm"):
        await bench.pool_filled(looks=20)
        await _burst(bench, key)
        await bench.delete([f"{key}-{number}" for number in range(bench.terms.burst)])


@asynccontextmanager
async def neighbour(address: str) -> AsyncIterator[list[float]]:
    """A chat that calls meanwhile, from a process of its own; the list has its milliseconds when the block ends."""
    command = (sys.executable, "-m", "bench.neighbour", address)
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    ready = await asyncio.wait_for(process.stdout.readline(), _NEIGHBOUR_SECONDS)
    assert ready == b"ready\n", "the neighbour could not call"
    samples: list[float] = []
    yield samples
    output, _ = await process.communicate(b"")
    samples += json.loads(output)


async def _burst(bench: Bench, key: str) -> None:
    failed = 0

    async def first(chat: str) -> None:
        nonlocal failed
        try:
            took, answer = await bench.client.answer(
                chat, "bash_tool", command=bench.terms.command, description="bench"
            )
        except (CallFailed, aiohttp.ClientError):
            failed += 1
            return
        failed += bench.terms.command == "node -v" and not _NODE.search(answer)
        bench.found[key].append(took)

    async with neighbour(bench.client.address) as samples:
        began = time.perf_counter()
        await asyncio.gather(*(first(f"{key}-{number}") for number in range(bench.terms.burst)))
        bench.found[f"{key}_wall"].append((time.perf_counter() - began) * 1000)
    bench.found["burst_neighbour"] += samples
    bench.found["burst_failed"].append(failed)


Part = Callable[[Bench], Coroutine[None, None, None]]
SERVICES: tuple[tuple[int, tuple[Part, ...]], ...] = (
    (2, (warm, first_events, new_chats, parallel, sleepers)),
    (0, (cold_chats, idle_memory)),
    (2, (bursts,)),
)
"""The size of a service's pool, and what is measured of it: what one part leaves running would cost the next."""


async def _measure(address: str, pid: int, terms: Terms, found: Samples, parts: tuple[Part, ...]) -> None:
    async with client_of(address) as client:
        for part in parts:
            await part(Bench(client, pid, terms, found))


def measure(side: Side, terms: Terms, run: Callable[[Coroutine[None, None, None]], None]) -> Samples:
    """One run of this side: services of its own, one after the other."""
    found: Samples = defaultdict(list)
    for pool, parts in SERVICES:
        with (
            TemporaryDirectory(prefix="cubicle-bench-", dir=terms.folder) as folder,
            service(Path(folder), side, **terms.settings(pool)) as (address, pid),
        ):
            run(_measure(address, pid, terms, found, parts))
    return found
