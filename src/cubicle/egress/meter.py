"""What a chat uses of the proxy: connections at once, and bytes a day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cubicle.egress.tally import EgressTally

DAY = 86400.0


class QuotaSpent(Exception):
    """The chat has used up what it may send and receive."""


class Quota:
    """Of one chat; it outlives the sandbox, so that a restart of the sandbox is no way around it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, used: int = 0, elapsed: float = 0.0) -> None:
        """`used`: bytes of this day, of which `elapsed` seconds have passed."""
        self._clock = clock
        self._since = clock() - elapsed
        self.connections = 0
        self.bytes = used
        self.tally = EgressTally()
        self.blocked = False
        """The quota of the chat's tenant or user is used up."""

    @property
    def elapsed(self) -> float:
        """Seconds of this day that have passed."""
        return self._clock() - self._since

    def add(self, amount: int, most: int) -> None:
        """Count bytes; Spent when there are more than `most` (0: no limit) in this day."""
        now = self._clock()
        if now - self._since >= DAY:
            self._since, self.bytes = now, 0
        self.bytes += amount
        if self.blocked or (most and self.bytes > most):
            raise QuotaSpent

    @property
    def forgettable(self) -> bool:
        """Nothing would be lost with it."""
        return self.tally.is_empty and not self.connections and (not self.bytes or self._clock() - self._since >= DAY)

    def spent(self, most: int) -> bool:
        return bool(most) and self.bytes >= most and self._clock() - self._since < DAY


class Pace:
    """So many a second, and as many at once after a pause; whoever is too quick waits."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._due = clock()

    async def take(self) -> None:
        now = self._clock()
        self._due = max(self._due, now - 1.0) + 1 / self._per_second
        if self._due > now:
            await asyncio.sleep(self._due - now)


class Meter:
    """Of one connection."""

    def __init__(self, allowance: Quota, most: int, touched: Callable[[], None]) -> None:
        self._allowance = allowance
        self._most = most
        self._touched = touched
        self.up = 0
        self.down = 0

    @property
    def connections(self) -> int:
        """That the chat has now."""
        return self._allowance.connections

    def sent(self, amount: int) -> None:
        self.up += amount
        self._allowance.tally.sent += amount
        self._touched()
        self._allowance.add(amount, self._most)

    def received(self, amount: int) -> None:
        self.down += amount
        self._allowance.tally.received += amount
        self._touched()
        self._allowance.add(amount, self._most)
