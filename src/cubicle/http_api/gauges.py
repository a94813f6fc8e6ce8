"""The metrics that are measured only when somebody asks: Prometheus, or an admin page that is open."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence

from cubicle.audit.audit import Audit
from cubicle.fairness.fair_queue import FairQueue
from cubicle.metrics.metrics import Metrics
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.free_space import FreeSpace
from cubicle.sandbox.slot import Overview
from cubicle.webhooks.webhooks import Webhooks

_COUNT_SECONDS = 5.0
"""Between two looks into the queue of webhooks."""
_ASK_SECONDS = 1.0


class Gauges:
    """Measures them, and leaves them in the metrics."""

    def __init__(
        self, metrics: Metrics, fleet: Fleet, queue: FairQueue, space: FreeSpace, audit: Audit, webhooks: Webhooks
    ) -> None:
        self.metrics = metrics
        self.audit = audit
        self.webhooks = webhooks
        self._fleet = fleet
        self._queue = queue
        self._space = space
        self._counted = -_COUNT_SECONDS
        self._starts: Counter[str] = Counter()
        """Those that are in the metrics already."""

    async def measure(self) -> Sequence[Overview]:
        """All of them; what was seen of the sandboxes."""
        usage = await asyncio.to_thread(self._space.usage)
        self.metrics.disk_free.set(usage.free)
        self.metrics.disk_floor.set(usage.floor)
        seen = self._fleet.overview()
        states = Counter(overview.state for overview in seen)
        for state in State:
            self.metrics.sandboxes.labels(state.value).set(states[state])
        starts = Counter(self._fleet.lifecycle.starts)
        for what in starts:
            self.metrics.starts.labels(what).inc(starts[what] - self._starts[what])
        self._starts = starts
        self.metrics.frozen.set(self._fleet.ladder.frozen)
        self.metrics.leases.set(sum(overview.leases for overview in seen))
        self.metrics.pool_ready.set(self._fleet.pool.ready)
        self.metrics.pool_size.set(self._fleet.pool.size)
        self.metrics.loop_waiting.set(self._queue.waiting)
        self.metrics.audit_failing.set(bool(self.audit.error))
        await self._count_webhooks()
        return seen

    async def _count_webhooks(self) -> None:
        now = time.monotonic()
        if not self.webhooks.enabled or now - self._counted < _COUNT_SECONDS:
            return
        self._counted = now
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                counts = await self.webhooks.on_disk(self.webhooks.store.counts)
        except (OSError, sqlite3.Error, TimeoutError):
            return  # what was known is shown
        self.metrics.webhooks.labels("waiting").set(sum(one.waiting for one in counts))
        self.metrics.webhooks.labels("dead").set(sum(one.dead for one in counts))
