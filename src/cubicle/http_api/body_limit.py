"""The limit of a request's body, for every route that has none of its own."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cubicle.core.caller import Headers
from cubicle.core.problem import Problem
from cubicle.core.request_limits import MAX_BODY
from cubicle.http_api.errors import HttpRefusal, response
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.urls import route_path

_TOO_LARGE = Problem(413, f"This address takes a body of at most {MAX_BODY // 1024} KB.")


class BodyLimit:
    """ASGI middleware. Some routes, such as uploads, count for themselves: the table says which."""

    def __init__(self, app: ASGIApp, table: RouteTable) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope) if scope["type"] == "http" else ""
        if not path or self._table.has_own_body_limit(path):
            await self._app(scope, receive, send)
            return
        declared = Headers(scope["headers"]).get("Content-Length") or ""
        if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > MAX_BODY):
            await response(_TOO_LARGE)(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise HttpRefusal(_TOO_LARGE)
            return message

        await self._app(scope, counted, send)
