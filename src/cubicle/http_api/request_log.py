"""Around every request: an id in the answer and in every line of the log, and one line when it is done."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from cubicle.chat.authentication import Who
from cubicle.core.caller import Headers
from cubicle.core.problem import Problem
from cubicle.http_api.errors import answer, response
from cubicle.http_api.routes import HEALTH, ROWS
from cubicle.http_api.urls import route_path
from cubicle.log import bound, detached

log = logging.getLogger(__name__)

HEADER = "X-Request-Id"
_NAME = HEADER.lower().encode()
_WELLFORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ENDING = Problem(503, "The service is shutting down. Try again in a moment.")
_QUIET = frozenset({HEALTH})
_CAPABILITIES = tuple(f"{row.literal}/" for row in ROWS if row.who is Who.CAPABILITY)
"""What comes before a segment of the path that opens something for whoever reads it."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestLog:
    """ASGI middleware. The path goes into the log without its query, which may hold a signature, or a capability."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        sent = Headers(scope["headers"]).get(HEADER)
        request = sent if sent and _WELLFORMED.fullmatch(sent) else uuid.uuid4().hex
        scope["headers"] = [*_others(scope["headers"]), (_NAME, request.encode())]  # another member has the same id
        status, started = 0, time.monotonic()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                message = {**message, "headers": [*_others(message["headers"]), (_NAME, request.encode())]}
            await send(message)

        with detached(), bound(request=request):  # on one connection come requests of several
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
                        "path": _shown_path(scope),
                        "status": status,
                        "seconds": seconds,
                    }
                    log.info("request", extra=extra)


def _others(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [line for line in headers if line[0] != _NAME]


def _shown_path(scope: Scope) -> str:
    path, own = str(scope["path"]), route_path(scope)
    for before in _CAPABILITIES:
        if own.startswith(before):
            return f"{path.removesuffix(own)}{before}…/{own.removeprefix(before).partition('/')[2]}"
    return path
