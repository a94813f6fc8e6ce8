"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from cubicle.http_api.gauges import Gauges
from cubicle.metrics.merged import merged
from cubicle.metrics.metrics import CONTENT_TYPE

OtherPages = Callable[[], Awaitable[tuple[str, dict[str, str]]]]
"""The name of this process, and the pages of the others by theirs."""


class MetricsRoutes:
    """For the operator, and for whoever has METRICS_TOKEN."""

    def __init__(self, gauges: Gauges, others: OtherPages | None = None) -> None:
        self._gauges = gauges
        self._others = others

    async def get(self, request: Request) -> Response:
        """Those of all processes; with `own=1` of this one, for who asks each of them."""
        text = await self.own()
        if self._others is not None and request.query_params.get("own") != "1":
            name, pages = await self._others()
            text = (await asyncio.to_thread(merged, {name: text.decode(), **pages})).encode()
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def own(self) -> bytes:
        """Those of this process."""
        await self._gauges.measure()
        return await asyncio.to_thread(self._gauges.metrics.text)
