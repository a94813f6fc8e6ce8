"""Around every request: an id in the answer and in every line of the log, and one line when it is done."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cubicle.core.caller import Headers
from cubicle.core.problem import Problem
from cubicle.http_api.errors import answer, response
from cubicle.http_api.routes import HEALTH
from cubicle.log import bound

log = logging.getLogger(__name__)

HEADER = "X-Request-Id"
_WELLFORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ENDING = Problem(503, "The service is shutting down. Try again in a moment.")
_QUIET = frozenset({HEALTH})

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestLog:
    """ASGI middleware. The path goes into the log without its query, which may hold a signature."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        sent = Headers(scope["headers"]).get(HEADER)
        request = sent if sent and _WELLFORMED.fullmatch(sent) else uuid.uuid4().hex
        status, started = 0, time.monotonic()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (HEADER.lower().encode(), request.encode())]}
            await send(message)

        with bound(request=request):
            try:
                await self._app(scope, receive, sending)
            except asyncio.CancelledError:  # the server ends, and this took longer than it waits
                if status or scope["type"] != "http":
                    raise
                await response(_ENDING)(scope, receive, sending)
            except Exception as error:
                # Here, not in the server around it: the lines of the log and the answer have the request's id.
                if status or scope["type"] != "http":
                    log.exception("a request failed")
                    raise
                await (await answer(None, error))(scope, receive, sending)
            finally:
                if scope["path"] not in _QUIET:
                    seconds = round(time.monotonic() - started, 3)
                    extra = {
                        "method": scope.get("method", "WS"),
                        "path": scope["path"],
                        "status": status,
                        "seconds": seconds,
                    }
                    log.info("request", extra=extra)
