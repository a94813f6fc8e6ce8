"""How many blank sandboxes are wanted, by the new chats that came, and which of them are kept for whom.

Wanted are as many as came within a few seconds, in the recent past: what came once at once may come again. Times are
those of `time.monotonic`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

WINDOW = 10.0
"""About what it takes to fill the pool again: what comes within it finds no more than is there."""
HALF_LIFE = 300.0
_MAX_TENANTS = 1000


class Peak:
    """The most that came within WINDOW seconds. It halves every HALF_LIFE seconds in which nothing like it comes."""

    def __init__(self, most: int) -> None:
        self._came: deque[float] = deque(maxlen=max(1, most))
        self._peak = 0.0
        self._since = 0.0

    def note(self, now: float) -> None:
        self._came.append(now)
        if (recent := self.recent(now)) >= self.expected(now):
            self._peak, self._since = float(recent), now

    def recent(self, now: float) -> int:
        """How many came within the last WINDOW seconds."""
        while self._came and now - self._came[0] > WINDOW:
            self._came.popleft()
        return len(self._came)

    def expected(self, now: float) -> float:
        """How many may come at once."""
        return self._peak * math.pow(0.5, (now - self._since) / HALF_LIFE)


class PoolDemand:
    """Between `least` and `most`; without a `least` there is no pool."""

    def __init__(self, least: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.least, self.most = least, max(least, most) if least else 0
        self._clock = clock
        self._all = Peak(self.most)
        self._tenants: dict[str, Peak] = {}
        """Those that had new chats, who was last comes last."""

    @property
    def wanted(self) -> int:
        return min(self.most, max(self.least, round(self._all.expected(self._clock()))))

    def came(self, tenant: str) -> None:
        """A new chat wants a sandbox."""
        now = self._clock()
        self._all.note(now)
        peak = self._tenants.pop(tenant, None) or Peak(self.most)
        peak.note(now)
        self._tenants[tenant] = peak
        if len(self._tenants) > _MAX_TENANTS:
            del self._tenants[next(iter(self._tenants))]

    def kept_from(self, tenant: str) -> int:
        """How many of those that are up are not this tenant's, whose new chat has come.

        Who has had fewer in the last seconds goes first, with as many as it may want, until it has had as many. Where
        there are several tenants, one is for who was not here lately.
        """
        now = self._clock()
        own = self._tenants.get(tenant)
        had = own.recent(now) - 1 if own is not None else 0
        if had <= 0 or len(self._tenants) == 1:
            return 0
        others = ((peak.recent(now), peak.expected(now)) for peak in self._tenants.values() if peak is not own)
        return 1 + sum(max(0, min(round(expected), had) - recent) for recent, expected in others)
