"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from cubicle.fairness.fair_queue import FairQueue
from cubicle.metrics.metrics import CONTENT_TYPE, Metrics
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.free_space import FreeSpace


class MetricsRoutes:
    """For the operator, and for whoever has METRICS_TOKEN."""

    def __init__(self, metrics: Metrics, fleet: Fleet, queue: FairQueue, space: FreeSpace) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._queue = queue
        self._space = space

    async def get(self, _request: Request) -> Response:
        self._look()
        usage = await asyncio.to_thread(self._space.usage)
        self._metrics.disk_free.set(usage.free)
        self._metrics.disk_floor.set(usage.floor)
        return Response(await asyncio.to_thread(self._metrics.text), headers={"Content-Type": CONTENT_TYPE})

    def _look(self) -> None:
        """What is counted only when somebody asks."""
        seen = self._fleet.overview()
        states = Counter(overview.state for overview in seen)
        for state in State:
            self._metrics.sandboxes.labels(state.value).set(states[state])
        self._metrics.leases.set(sum(overview.leases for overview in seen))
        self._metrics.pool_ready.set(self._fleet.pool.ready)
        self._metrics.pool_size.set(self._fleet.pool.size)
        self._metrics.loop_waiting.set(self._queue.waiting)
