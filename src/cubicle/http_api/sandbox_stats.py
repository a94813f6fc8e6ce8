"""What sandboxes use, asked of their guests for the admin page: those that are seen first, the others in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cubicle.machine.errors import SandboxError
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.slot import Overview

_ASK_SECONDS = 3.0
_MAX_CONCURRENT = 16
_OTHERS = 100
"""Sandboxes that nobody sees and that are asked in one turn all the same: the table is sorted by what they use, too."""


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """Of one sandbox at the last look. Rounded: what hardly changes is not sent again."""

    cpu_percent: int | None = None
    """Of one CPU, since the look before."""
    memory: int | None = None
    disk: int | None = None
    processes: int | None = None


class SandboxStats:
    """Bounded by the sandboxes that there are."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._uses: dict[str, SandboxUse] = {}
        self._cpu: dict[str, tuple[float, float]] = {}
        self._asked: dict[str, int] = {}
        """The turn in which a sandbox was asked last, by its name."""
        self._turn = 0

    def of(self, name: str) -> SandboxUse:
        return self._uses.get(name, _UNKNOWN)

    async def sample(self, seen: Sequence[Overview], visible: Collection[str], others: int = _OTHERS) -> None:
        """One turn: of all that were seen ask those that are visible, and some of the others."""
        self._turn += 1
        running = [each for each in seen if each.chat is not None and each.state is State.RUNNING]
        names = {each.name for each in running}
        self._uses = {name: use for name, use in self._uses.items() if name in names}
        self._cpu = {name: look for name, look in self._cpu.items() if name in names}
        self._asked = {name: turn for name, turn in self._asked.items() if name in names}
        first = [each for each in running if each.name in visible]
        rest = sorted(
            (each for each in running if each.name not in visible), key=lambda each: self._asked.get(each.name, 0)
        )
        gate = asyncio.Semaphore(_MAX_CONCURRENT)
        await asyncio.gather(*(self._ask(each, gate) for each in (*first, *rest[:others])))

    async def _ask(self, overview: Overview, gate: asyncio.Semaphore) -> None:
        assert overview.chat is not None
        async with gate:
            self._asked[overview.name] = self._turn
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    stats = await self._fleet.usage(overview.chat)
            except (SandboxError, TimeoutError):
                stats = None
        if stats is None:
            self._uses.pop(overview.name, None)
            return
        self._uses[overview.name] = SandboxUse(
            self._cpu_percent(overview.name, stats.cpu_seconds),
            None if stats.memory is None else _rounded(stats.memory),
            None if stats.disk_used is None else _rounded(stats.disk_used),
            stats.processes,
        )

    def _cpu_percent(self, name: str, seconds: float | None) -> int | None:
        if seconds is None:
            return None
        now = time.monotonic()
        before, used = self._cpu.get(name, (now, seconds))
        self._cpu[name] = (now, seconds)
        return round(max(0.0, seconds - used) / (now - before) * 100) if now > before else None


_UNKNOWN = SandboxUse()


def _rounded(count: int) -> int:
    return (count + (1 << 19)) >> 20 << 20
