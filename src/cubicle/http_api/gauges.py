"""The metrics that are measured only when somebody asks: Prometheus, or an admin page that is open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from cubicle.fairness.fair_queue import FairQueue
from cubicle.metrics.metrics import Metrics
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.free_space import FreeSpace
from cubicle.sandbox.slot import Overview


class Gauges:
    """Measures them, and leaves them in the metrics."""

    def __init__(self, metrics: Metrics, fleet: Fleet, queue: FairQueue, space: FreeSpace) -> None:
        self.metrics = metrics
        self._fleet = fleet
        self._queue = queue
        self._space = space

    async def measure(self) -> Sequence[Overview]:
        """All of them; what was seen of the sandboxes."""
        usage = await asyncio.to_thread(self._space.usage)
        self.metrics.disk_free.set(usage.free)
        self.metrics.disk_floor.set(usage.floor)
        seen = self._fleet.overview()
        states = Counter(overview.state for overview in seen)
        for state in State:
            self.metrics.sandboxes.labels(state.value).set(states[state])
        self.metrics.leases.set(sum(overview.leases for overview in seen))
        self.metrics.pool_ready.set(self._fleet.pool.ready)
        self.metrics.pool_size.set(self._fleet.pool.size)
        self.metrics.loop_waiting.set(self._queue.waiting)
        return seen
