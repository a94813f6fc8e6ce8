"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from cubicle.http_api.gauges import Gauges
from cubicle.metrics.metrics import CONTENT_TYPE


class MetricsRoutes:
    """For the operator, and for whoever has METRICS_TOKEN."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    async def get(self, _request: Request) -> Response:
        await self._gauges.measure()
        text = await asyncio.to_thread(self._gauges.metrics.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})
