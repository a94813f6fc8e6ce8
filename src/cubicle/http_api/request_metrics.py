"""Around every request: counts it, by the group of routes that answered it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cubicle.http_api.routes import ROW, ROWS, Row
from cubicle.metrics.metrics import OTHER, Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GROUPS = frozenset({"mcp", OTHER, *(row.handler.partition(".")[0] for row in ROWS)})
"""Every value of the label `route`; other is what no row answers, and what programs in sandboxes serve."""


class RequestMetrics:
    """ASGI middleware, before all others."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, began = 0, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            self._metrics.request_ended(_group(scope), status, time.perf_counter() - began)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        group: str | None = None

        async def sending(message: Message) -> None:
            nonlocal group
            if message["type"] == "websocket.accept" and group is None:
                group = _group(scope)
                self._metrics.websockets.labels(group).inc()
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            if group is not None:
                self._metrics.websockets.labels(group).dec()


def _group(scope: Scope) -> str:
    row = scope.get(ROW)
    return row.handler.partition(".")[0] if isinstance(row, Row) else OTHER
