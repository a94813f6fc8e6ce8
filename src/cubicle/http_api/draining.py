"""The middleware that lets the service stop in order: what is under way is finished, and new requests get 503."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from cubicle.core import close_codes
from cubicle.core.problem import DRAINING
from cubicle.http_api.errors import response
from cubicle.http_api.urls import route_path

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Calls = Callable[[float, Callable[[], bool]], Awaitable[None]]

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOK_SECONDS = 0.05


class Drain:
    """The state: `run` begins the end of the service, and returns when what is under way is done or time is up."""

    def __init__(self, seconds: float, calls: Calls, *, refuses: bool = True) -> None:
        """`calls` refuses new tool calls and waits for those that run. Other new requests are refused, too, unless
        another process goes on with them."""
        self.refuses = refuses
        self._seconds = seconds
        self._calls = calls
        self.begun = False
        self.writes = 0
        """Uploads and other changes that are under way."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        self.begun = True
        log.info("stopping: what runs has %g seconds, new requests are refused", self._seconds)
        ends = time.monotonic() + self._seconds
        await self._calls(self._seconds, is_over)
        while self.writes and time.monotonic() < ends and not is_over():  # noqa: ASYNC110 — a signal sets no event
            await asyncio.sleep(_LOOK_SECONDS)


class DrainCheck:
    """ASGI middleware. The MCP paths refuse new tool calls by themselves, since running ones need further requests; the
    metrics are read to the end."""

    def __init__(self, app: App, drain: Drain, paths: Collection[str]) -> None:
        self._app = app
        self._drain = drain
        self._paths = frozenset({*paths, "/metrics"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or route_path(scope) in self._paths:
            await self._app(scope, receive, send)
        elif self._drain.begun and self._drain.refuses:
            await _refuse(scope, receive, send)
        elif scope["type"] == "websocket" or scope["method"] in _READS:
            await self._app(scope, receive, send)
        else:
            self._drain.writes += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._drain.writes -= 1


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": close_codes.RESTART})
    else:
        await response(DRAINING)(scope, receive, send)
