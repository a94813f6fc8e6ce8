"""Fails where this code is slower than the commit it is based on: both serve, and are measured turn by turn.

python -m bench.gate [--base COMMIT] [--turns 16] [--driver oci|memory]

A loss counts where a figure is more than 10 % worse, surely worse at all, and is so again with new services. Where
a few turns make sure that no figure is one, there are no more.
Where there is nothing to compare with, the gate says why, and passes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from bench.http import CallFailed, Client
from bench.intervals import median_interval
from bench.measure import Terms, client_of
from bench.service import NotServing, cpu_clock, heed_signals, image, service
from bench.side import NoBase, Side, exported, find_base, here

LOSS = 1.10
TURNS = 16
FEW = 6
"""Turns after which it may be sure that nothing is a loss."""
ACCEPTED: dict[str, float] = {}
"""A figure and the loss that a change takes on purpose, the reason beside it; the change after it removes the row."""
CALLS, CHATS, EACH = 15, 8, 5
FILE = "/home/assistant/gate.txt"
NAMES = {
    "warm": "warm bash_tool true, ms",
    "view": "view of a file, ms",
    "cpu": "CPU of the service a call, ms",
    "together": f"{CHATS} chats at once, ms a call",
    "cold": "new chat without a pool, ms",
    "wake": "wake a stopped chat, ms",
}


class SideFailed(Exception):
    """A call of this side failed."""

    def __init__(self, side: Side, why: object) -> None:
        super().__init__(f"{side.name}: {why}")
        self.side = side


class Measured:
    """One side that serves, and what each of its turns took."""

    def __init__(self, side: Side, client: Client, pid: int) -> None:
        self.side, self.pid = side, pid
        self._client = client
        self._number = 0
        self.turns: dict[str, list[float]] = defaultdict(list)

    async def prepare(self) -> None:
        await self._call("warm", f"seq 20 > {FILE}")
        await asyncio.gather(*(self._call(f"chat-{number}") for number in range(CHATS)))

    async def single(self) -> tuple[float, float]:
        """One command, and one look at a file."""
        return await self._call("warm"), await self._view()

    async def together(self) -> float:
        """Milliseconds a call of all chats at once."""
        began = time.perf_counter()
        await asyncio.gather(*(self._calls(f"chat-{number}", EACH) for number in range(CHATS)))
        return (time.perf_counter() - began) * 1000 / (CHATS * EACH)

    async def start(self) -> tuple[float, float]:
        """A chat that is new; the same one when it is woken."""
        self._number += 1
        chat = f"new-{self._number}"
        cold = await self._call(chat)
        await self._ask("POST", f"/api/sandboxes/{chat}/stop")
        wake = await self._call(chat)
        await self._ask("DELETE", f"/api/sandboxes/{chat}")
        return cold, wake

    async def _call(self, chat: str, command: str = "true") -> float:
        try:
            return await self._client.bash(chat, command)
        except (CallFailed, aiohttp.ClientError) as error:
            raise SideFailed(self.side, error) from None

    async def _calls(self, chat: str, count: int) -> None:
        for _ in range(count):
            await self._call(chat)

    async def _view(self) -> float:
        try:
            return await self._client.call("warm", "view", path=FILE, description="bench")
        except (CallFailed, aiohttp.ClientError) as error:
            raise SideFailed(self.side, error) from None

    async def _ask(self, method: str, path: str) -> None:
        async with self._client.http.request(method, path) as answer:
            if answer.status >= 400:
                raise SideFailed(self.side, f"{method} {path}: {await answer.text()}")


@dataclass(frozen=True)
class Comparison:
    """One figure of both sides."""

    key: str
    base: float
    here: float
    ratio: float
    low: float
    high: float
    turns: int

    @classmethod
    def of(cls, key: str, base: Sequence[float], here: Sequence[float]) -> Comparison:
        """Each turn is compared with the one beside it: the machine is not ours alone."""
        ratios = [new / old for old, new in zip(base, here, strict=True)]
        return cls(key, median(base), median(here), median(ratios), *median_interval([ratios]), len(ratios))

    @property
    def is_loss(self) -> bool:
        return self.ratio > self._limit and self.low > 1.0

    @property
    def is_surely_none(self) -> bool:
        return self.high < self._limit

    @property
    def _limit(self) -> float:
        return ACCEPTED.get(self.key, LOSS)


async def take_turns(sides: Sequence[Measured], turns: int) -> None:
    """In every part of a turn one side follows the other closely, and they go first in turns."""
    for side in sides:
        await side.prepare()
    for number in range(-2, turns):
        if number == 0:
            for side in sides:  # what was only to warm them up
                side.turns.clear()
        await _turn(sides if number % 2 else sides[::-1])
        if number + 1 == FEW and all(found.is_surely_none for found in _found(sides)):
            return


async def _turn(sides: Sequence[Measured]) -> None:
    before = [cpu_clock(side.pid) for side in sides]
    singles: list[list[tuple[float, float]]] = [[] for _ in sides]
    for number in range(CALLS):
        pairs = list(zip(sides, singles, strict=True))
        for side, found in pairs if number % 2 else reversed(pairs):
            found.append(await side.single())
    for side in sides:
        side.turns["together"].append(await side.together())
    calls = 2 * CALLS + CHATS * EACH
    for side, found, spent in zip(sides, singles, before, strict=True):
        side.turns["cpu"].append((cpu_clock(side.pid) - spent) * 1000 / calls)
        side.turns["warm"].append(median(warm for warm, _ in found))
        side.turns["view"].append(median(view for _, view in found))
    for side in sides:
        cold, wake = await side.start()
        side.turns["cold"].append(cold)
        side.turns["wake"].append(wake)


def compare(base: Side, change: Side, terms: Terms, turns: int) -> list[Comparison]:
    """Both sides with new services; raises NoBase, SideFailed, NotServing."""
    with ExitStack() as stack:
        served = []
        for side in (base, change):
            folder = stack.enter_context(TemporaryDirectory(prefix="cubicle-gate-", dir=terms.folder))
            try:
                served.append((side, *stack.enter_context(service(Path(folder), side, **terms.settings(0)))))
            except NotServing as error:
                if side is base:
                    raise NoBase(f"the service of {side.name} does not start") from None
                raise SideFailed(side, error) from None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_compare(served, turns))


async def _compare(served: Sequence[tuple[Side, str, int]], turns: int) -> list[Comparison]:
    async with AsyncExitStack() as stack:
        sides = [
            Measured(side, await stack.enter_async_context(client_of(address)), pid) for side, address, pid in served
        ]
        await take_turns(sides, turns)
    return _found(sides)


def _found(sides: Sequence[Measured]) -> list[Comparison]:
    base, change = sides
    return [Comparison.of(key, base.turns[key], change.turns[key]) for key in NAMES]


def judge(base: Side, change: Side, terms: Terms, turns: int, console: Console) -> list[Comparison]:
    """The losses that were there both times; raises as compare()."""
    first = compare(base, change, terms, turns)
    show(first, f"{change.name} against {base.name}, {first[0].turns} turns", console)
    suspects = {found.key for found in first if found.is_loss}
    if not suspects:
        return []
    console.print(f"Measured again with new services: {', '.join(sorted(suspects))} may be a loss.")
    second = compare(base, change, terms, turns)
    show(second, f"{change.name} against {base.name}, once more", console)
    return [found for found in second if found.is_loss and found.key in suspects]


def show(found: Sequence[Comparison], title: str, console: Console) -> None:
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column("median of the turns")
    for name in ("base", "here", "here / base", "95 % interval"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in found:
        verdict = "[red]loss[/]" if row.is_loss else ""
        numbers = (f"{row.base:.2f}", f"{row.here:.2f}", f"{row.ratio:.3f}", f"{row.low:.3f} – {row.high:.3f}")
        table.add_row(NAMES[row.key], *numbers, verdict)
    console.print(table)


def gate(base: str, terms: Terms, turns: int, console: Console, root: Path | None = None) -> bool:
    """Whether the code of this folder is as fast as the base, or there is none."""
    change = here(root) if root else here()
    try:
        with exported(base or find_base(change.folder), change.folder) as before:
            losses = judge(before, change, terms, turns, console)
    except NoBase as why:
        console.print(f"No comparison of speed: {why}.")
        return True
    except SideFailed as failed:
        console.print(f"A side failed: {failed}")
        return failed.side is not change
    for loss in losses:
        console.print(f"{NAMES[loss.key]}: {loss.ratio:.2f} × the base, twice.")
    return not losses


def default_terms(driver: str) -> Terms:
    if driver == "oci":
        return Terms(driver="oci", image=image())
    return Terms(driver=driver, folder="/var/tmp")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    told = os.environ.get("CUBICLE_BENCH_BASE", "")
    parser.add_argument("--base", default=told, metavar="COMMIT", help="instead of the commit this is based on")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--driver", default="oci", choices=["oci", "memory"])
    options = parser.parse_args()
    heed_signals()
    good = gate(options.base, default_terms(options.driver), options.turns, Console(width=120))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
