"""How late the event loop is: what every request waits at least."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cubicle.tasks import start_task

EVERY_SECONDS = 0.25
_KEPT = 20
"""Looks of which the worst counts: the last five seconds."""


class LoopLag:
    """Sets a timer again and again, and looks how late it comes."""

    def __init__(self, observe: Callable[[float], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._observe = observe
        self._clock = clock
        self._last: deque[float] = deque(maxlen=_KEPT)

    @property
    def typical(self) -> float:
        """Seconds that half of the last looks were late at least: one stall does not make it large, a flood does."""
        ordered = sorted(self._last)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def note(self, late: float) -> None:
        self._last.append(late)
        self._observe(late)

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Within the block."""
        task = start_task(self._measure(), name="loop lag")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _measure(self) -> None:
        while True:
            due = self._clock() + EVERY_SECONDS
            await asyncio.sleep(EVERY_SECONDS)
            self.note(max(0.0, self._clock() - due))
