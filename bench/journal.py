"""What the journal costs: the same warm calls against a service with it and one without it, turn by turn.

python -m bench.journal [--driver oci|memory] [--rounds 60] [--chats 8]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop

from bench.http import Client
from bench.report import Report, percentile
from bench.service import cpu_seconds, image, service
from cubicle.core.chat import Chat

BAR = 1.05
ALONE = 6
"""Calls one at a time in one turn."""
SECONDS = 1.0
"""For so long in each turn all chats call without a pause: what is counted is what gets through."""
MANY = 10_000


@dataclass
class Side:
    """One of the two services."""

    client: Client
    pid: int
    chats: list[str]
    alone: list[float] = field(default_factory=list)
    """Milliseconds a call, one at a time."""
    together: list[float] = field(default_factory=list)
    """Milliseconds a call, all chats at once."""
    cpu: float = 0.0
    calls: int = 0

    async def turn(self) -> None:
        before = cpu_seconds(self.pid)
        took = [await self.client.bash(self.chats[0]) for _ in range(ALONE)]
        self.alone.append(sum(took) / ALONE)
        began = time.perf_counter()
        ended = await asyncio.gather(*(self._calls(chat, began + SECONDS) for chat in self.chats))
        count = sum(map(len, ended))
        within = sum(at < began + SECONDS for each in ended for at in each)
        self.together.append(SECONDS * 1000 / within)
        self.calls += count + ALONE
        self.cpu += cpu_seconds(self.pid) - before

    async def _calls(self, chat: str, until: float) -> list[float]:
        """Call until then; when each call ended."""
        ended = [time.perf_counter()]
        while ended[-1] < until:
            await self.client.bash(chat)
            ended.append(time.perf_counter())
        return ended[1:]


async def compare(kept: Side, bare: Side, report: Report, rounds: int, what: str = "journal") -> None:
    for side in (kept, bare):
        for _ in range(3):
            await side.turn()
        side.alone, side.together, side.cpu, side.calls = [], [], 0.0, 0
    for number in range(rounds):
        first, second = (kept, bare) if number % 2 else (bare, kept)
        await first.turn()
        await second.turn()
    rows = (
        ("one call at a time", kept.alone, bare.alone),
        (f"{len(kept.chats)} chats at once", kept.together, bare.together),
    )
    for name, with_it, without in rows:
        ratio = percentile(with_it, 0.5) / percentile(without, 0.5)
        report.row(f"{name}, no {what}", without)
        report.row(f"{name}, {what}", with_it, ratio <= BAR, f"{ratio:.3f} x the time without it (bar {BAR})")
    cpu, cpu_bare = kept.cpu * 1000 / kept.calls, bare.cpu * 1000 / bare.calls
    report.note("CPU of the service a call", f"{cpu:.2f} ms with the {what}, {cpu_bare:.2f} ms without")


async def bound(side: Side, report: Report, folder: Path) -> None:
    """Many calls on one chat: what is on disk, and what the service holds."""
    before = _memory(side.pid)
    began = time.perf_counter()
    for _ in range(MANY // 50):
        await asyncio.gather(*(side.client.bash("bound", "echo a line of output") for _ in range(50)))
    rate = MANY / (time.perf_counter() - began)
    size = sum(path.stat().st_size for path in (folder / Chat("bound").digest).iterdir()) / 2**20
    grown = _memory(side.pid) - before
    text = f"{size:.2f} MiB on disk (bar 2.1), {grown:+.1f} MB in the service, {rate:.0f} calls a second"
    report.note(f"{MANY:,} calls on one chat", text, size <= 2.1)


def _memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


async def measure(kept: tuple[str, int], bare: tuple[str, int], options: argparse.Namespace, folder: Path) -> Report:
    chats = [f"chat-{number}" for number in range(options.chats)]
    report = Report("the journal")
    async with aiohttp.ClientSession(kept[0]) as one, aiohttp.ClientSession(bare[0]) as two:
        sides = Side(Client(kept[0], one), kept[1], chats), Side(Client(bare[0], two), bare[1], chats)
        await compare(*sides, report, options.rounds)
        if options.many:
            await bound(sides[0], report, folder)
    return report


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", default="oci")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--many", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    names = {"DRIVER": options.driver, "REQUIRE_WALLS": "warn"}
    if options.driver == "oci":
        names["SANDBOX_IMAGE"] = image()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        folder = Path(one) / "data" / "journal"
        with service(Path(one), **names) as kept, service(Path(two), JOURNAL_MB="0", **names) as bare:
            report = uvloop.run(measure(kept, bare, options, folder))
    report.show()
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
