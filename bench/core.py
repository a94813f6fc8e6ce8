"""The sandboxes themselves: starts, commands, output, memory. Every bar is a ratio or a time within one run.

python -m bench.core [--driver oci|memory] [--runtime runc] [--idle 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench.report import Report, percentile
from cubicle import settings as settings_module
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings

MB = 1_000_000


def host_spawn() -> None:
    """The floor: bash on the host, started the quickest way there is."""
    pid = os.posix_spawn("/bin/bash", ["bash", "-c", "true"], {"PATH": "/usr/bin:/bin"})
    os.waitpid(pid, 0)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def fleet_of(settings: Settings, pool: int) -> AsyncIterator[Fleet]:
    async with Fleet(make_driver(settings), make_chat_index(settings), pool_size=pool) as fleet:
        if pool:
            await fleet.pool.filled()
        yield fleet


async def warm(fleet: Fleet, report: Report, rounds: int) -> None:
    """Warm `bash -c true`, turn by turn with the host's own."""
    async with fleet.lease(Chat("warm")) as machine:
        host, guest = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            host_spawn()
            host.append((time.perf_counter() - began) * 1000)
            guest.append(await timed(lambda: machine.output("true")))
        ratio = percentile(guest, 0.5) / percentile(host, 0.5)
        report.row("host posix_spawn of bash", host)
        report.row("warm bash -c true", guest, bar=ratio <= 2.0, note=f"{ratio:.2f} x the host (bar 2.0)")


async def output(fleet: Fleet, report: Report) -> None:
    """100 MB of output, and what it costs in memory on both sides."""
    async with fleet.lease(Chat("output")) as machine:
        await drain(machine, 20 * MB)
        before, guest_before = own_memory(), await guest_memory(machine)
        rates = []
        for _ in range(5):
            began = time.perf_counter()
            await drain(machine, 100 * MB)
            rates.append(100 / (time.perf_counter() - began))
        grown, guest_grown = own_memory() - before, await guest_memory(machine) - guest_before
        rate = percentile(rates, 0.5)
        flat = grown < 8 and guest_grown < 8
        report.note(
            "100 MB of output",
            f"{rate:.0f} MB/s (bar 400), memory of the service {grown:+.1f} MB, of the guest {guest_grown:+.1f} MB",
            rate >= 400 and flat,
        )


async def drain(machine: Machine, size: int) -> None:
    total = 0
    async with machine.run(f"head -c {size} /dev/zero") as process:
        async for _, chunk in process.output:
            total += len(chunk)
    assert total == size


def own_memory() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() / MB


async def guest_memory(machine: Machine) -> float:
    _, text = await machine.output("awk '/^VmRSS/ {print $2}' /proc/1/status 2>/dev/null")
    return int(text or b"0") / 1000


async def new_chats(settings: Settings, report: Report, rounds: int) -> None:
    async def first(fleet: Fleet, name: str) -> None:
        async with fleet.lease(Chat(name)) as machine:
            exit, _ = await machine.output("true")
            assert exit.code == 0

    pooled, cold = [], []
    async with fleet_of(settings, 2) as fleet:
        for i in range(rounds):
            await fleet.pool.filled()
            pooled.append(await timed(lambda: first(fleet, f"pooled-{i}")))  # noqa: B023
        for i in range(rounds):
            await fleet.remove(Chat(f"pooled-{i}"))
    report.row("new chat, first command, pool filled", pooled, bar=percentile(pooled, 0.5) <= 15, note="bar 15 ms")
    async with fleet_of(settings, 0) as fleet:
        for i in range(rounds):
            cold.append(await timed(lambda: first(fleet, f"cold-{i}")))  # noqa: B023
        report.row("new chat, first command, no pool", cold, bar=percentile(cold, 0.5) <= 150, note="bar 150 ms")
        wakes = []
        for i in range(rounds):
            await fleet.stop(Chat(f"cold-{i}"))
            wakes.append(await timed(lambda: first(fleet, f"cold-{i}")))  # noqa: B023
        report.row("wake a stopped chat, first command", wakes, bar=percentile(wakes, 0.5) <= 100, note="bar 100 ms")
        for i in range(rounds):
            await fleet.remove(Chat(f"cold-{i}"))


async def burst(settings: Settings, report: Report, chats: int = 32) -> None:
    """New chats all at once: none fails, none gets another's sandbox."""
    async with fleet_of(settings, 2) as fleet:

        async def own(i: int) -> bool:
            async with fleet.lease(Chat(f"burst-{i}")) as machine:
                _, before = await machine.output("cat ~/mark 2>/dev/null")
                await machine.output(f"echo {i} > ~/mark")
                await asyncio.sleep(0.2)
                _, after = await machine.output("cat ~/mark")
                return before == b"" and after == f"{i}\n".encode()

        began = time.perf_counter()
        results = await asyncio.gather(*(own(i) for i in range(chats)), return_exceptions=True)
        wall = time.perf_counter() - began
        good = sum(result is True for result in results)
        report.note(f"{chats} new chats at once", f"{good} right, {wall:.2f} s in all", good == chats)
        for i in range(chats):
            await fleet.remove(Chat(f"burst-{i}"))


async def idle(settings: Settings, report: Report, count: int) -> None:
    """Many idle sandboxes: what each costs, counted as the host's free memory and as its own."""
    async with fleet_of(settings, 0) as fleet:
        async with fleet.lease(Chat("idle-first")):
            pass
        before, own_before = used_memory(), own_memory()
        stats = []
        for i in range(count):
            async with fleet.lease(Chat(f"idle-{i}")) as machine:
                await machine.output("true")
        await asyncio.sleep(1)
        total = used_memory() - before
        for i in range(count):
            async with fleet.lease(Chat(f"idle-{i}")) as machine:
                stats.append((await machine.stats()).memory or 0)
        own = (own_memory() - own_before) / count
        each = total / count
        charged = sum(stats) / count / MB
        report.note(
            f"{count} idle sandboxes",
            f"{each:.1f} MB each of the host's memory (bar 10; their own cgroups say {charged:.1f}, "
            f"the service's share is {own:.2f})",
            each <= 10,
        )
        for i in range(count):
            await fleet.remove(Chat(f"idle-{i}"))
        await fleet.remove(Chat("idle-first"))


def used_memory() -> float:
    """Memory of the host that nobody else could have, page cache of files left out: MemAvailable, counted down."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return -int(fields["MemAvailable"].split()[0]) * 1024 / MB


async def run(options: argparse.Namespace) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="cubicle-bench-", dir=options.folder))
    settings = settings_module.load(
        driver=options.driver, data_dir=folder, oci_runtime=options.runtime, sandbox_image=options.image
    )
    report = Report(f"sandboxes on the {options.driver} driver")
    try:
        async with fleet_of(settings, 1) as fleet:
            await warm(fleet, report, options.rounds)
            await output(fleet, report)
            for name in ("warm", "output"):
                await fleet.remove(Chat(name))
        await new_chats(settings, report, options.starts)
        await burst(settings, report)
        if options.idle:
            await idle(settings, report, options.idle)
    finally:
        driver = make_driver(settings)
        await driver.open()
        for seen in await driver.list():
            await driver.delete(seen.name)
        await driver.close()
        shutil.rmtree(folder, ignore_errors=True)
    report.show()
    return report.good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--driver", default="oci")
    parser.add_argument("--runtime", default="")
    parser.add_argument("--image", default="slim")
    parser.add_argument("--folder", default="/var/lib", help="where the state of the run lies meanwhile")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--starts", type=int, default=15)
    parser.add_argument("--idle", type=int, default=200)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise SystemExit(0 if runner.run(run(parser.parse_args())) else 1)


if __name__ == "__main__":
    main()
