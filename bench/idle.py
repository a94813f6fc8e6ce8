"""Idle sandboxes: how soon a frozen one answers, and what each costs.

python -m bench.idle [--count 100] [--rounds 100] [--runtime runc]
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import tempfile
import time
from pathlib import Path

import uvloop

from bench.core import MB, own_memory, used_memory
from bench.report import Report, percentile
from cubicle import settings as settings_module
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.idle_ladder import FROZEN_TIMES

IDLE = 3600.0
"""Longer than the run: what is frozen is frozen by the bench."""
HOST = 8_000
"""MB of the host on which 1,000 chats shall be idle."""
_STARTS = 4


async def call(fleet: Fleet, chat: Chat) -> float:
    """Milliseconds of a `true`."""
    began = time.perf_counter()
    async with fleet.lease(chat) as machine:
        await machine.output("true")
    return (time.perf_counter() - began) * 1000


async def rest(fleet: Fleet, seconds: float) -> None:
    """As if all had been idle for so long."""
    for slot in fleet._slots.values():
        slot.rest.since = time.monotonic() - seconds
    await fleet.ladder.sweep()


async def thaws(fleet: Fleet, report: Report, rounds: int) -> None:
    """A frozen sandbox and one that runs, turn by turn."""
    frozen, running = Chat("frozen"), Chat("running")
    for chat in (frozen, running):
        await call(fleet, chat)
    slot = fleet._slots[frozen.digest]
    thawed, first, warm = [], [], []
    for _ in range(rounds):
        warm.append(await call(fleet, running))
        await rest(fleet, IDLE)
        began = time.perf_counter()
        async with fleet.ladder.awake(slot):
            thawed.append((time.perf_counter() - began) * 1000)
        await rest(fleet, IDLE)
        assert slot.rest.frozen
        first.append(await call(fleet, frozen))
    report.row("thaw", thawed, bar=percentile(thawed, 0.95) < 2, note="bar 2 ms (p95)")
    report.row("`true` on a frozen sandbox", first)
    report.row("`true` on one that runs", warm)
    for chat in (frozen, running):
        await fleet.remove(chat, now=True)


async def many(fleet: Fleet, report: Report, count: int) -> None:
    """Memory of many on each rung, counted as what nobody else could have of the host's."""
    chats = [Chat(f"idle-{number}") for number in range(count)]
    await call(fleet, Chat("first"))
    before, own = used_memory(), own_memory()
    gate = asyncio.Semaphore(_STARTS)

    async def start(chat: Chat) -> None:
        async with gate:
            await call(fleet, chat)

    began = time.perf_counter()
    await asyncio.gather(*map(start, chats))
    report.note(f"{count} sandboxes made, each after one command", f"{time.perf_counter() - began:.1f} s")
    await asyncio.sleep(2)
    _tell(report, "running", before, count)
    private, shared = guest_memory()
    report.note("guest, PSS", f"{private:.2f} MB (p50; bar 4), {shared:.2f} MB of it its own", private <= 4)
    report.note("the service's own share", f"{(own_memory() - own) / count:.3f} MB each")
    began = time.perf_counter()
    await rest(fleet, IDLE)
    taken = time.perf_counter() - began
    report.note("frozen", f"{fleet.ladder.frozen} of {count + 1} in {taken:.2f} s", fleet.ladder.frozen == count + 1)
    began = time.perf_counter()
    await rest(fleet, IDLE * (1 + FROZEN_TIMES))
    report.note("memory given back", f"in {time.perf_counter() - began:.2f} s")
    await asyncio.sleep(2)
    _tell(report, "frozen, memory given back", before, count)
    report.row("first `true` after that", [await call(fleet, chat) for chat in chats[:50]])
    report.row("the next", [await call(fleet, chat) for chat in chats[:50]])


def _tell(report: Report, name: str, before: float, count: int) -> None:
    each = (used_memory() - before) / count
    report.note(f"{name}: memory of the host", f"{each:.2f} MB each, 1,000 of them {each:.2f} GB (bar 8)", each <= 8)


def guest_memory() -> tuple[float, float]:
    """Of the guests of this host, the median: PSS, and what of it no other has."""
    pss, own = [], []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"guest.pyz" not in (folder / "cmdline").read_bytes():
                continue
            text = (folder / "smaps_rollup").read_text()
        except OSError:
            continue
        sizes = {name: int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
        pss.append(sizes["Pss"] * 1024 / MB)
        own.append((sizes["Private_Dirty"] + sizes["Private_Clean"]) * 1024 / MB)
    return percentile(pss, 0.5), percentile(own, 0.5)


async def run(options: argparse.Namespace) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="cubicle-bench-"))
    settings = settings_module.load(data_dir=folder, oci_runtime=options.runtime, sandbox_image=options.image)
    report = Report("idle sandboxes")
    driver = make_driver(settings)
    try:
        async with Fleet(driver, make_chat_index(settings), pool_size=0, freeze_after=IDLE) as fleet:
            await thaws(fleet, report, options.rounds)
            await many(fleet, report, options.count)
            report.show()
            gate = asyncio.Semaphore(_STARTS)

            async def remove(chat: Chat) -> None:
                async with gate:
                    await fleet.remove(chat, now=True)

            await asyncio.gather(*(remove(seen.chat) for seen in fleet.overview() if seen.chat is not None))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report.good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="idle sandboxes")
    parser.add_argument("--rounds", type=int, default=100, help="thaws")
    parser.add_argument("--runtime", default="runc")
    parser.add_argument("--image", default="slim")
    raise SystemExit(0 if uvloop.run(run(parser.parse_args())) else 1)


if __name__ == "__main__":
    main()
