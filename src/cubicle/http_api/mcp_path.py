"""The way of MCP's requests: past the middleware that lets them pass, and the router."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import MCP, ROW
from cubicle.http_api.urls import route_path

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class McpPath:
    """ASGI middleware, before those of the other routes: none of them has to do with MCP, whose endpoint checks key,
    origin, size and quotas itself. `mcp` answers on every MCP path that is written as it is."""

    def __init__(self, app: App, mcp: App, table: RouteTable) -> None:
        self._app = app
        self._mcp = mcp
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._table.is_mcp(route_path(scope)) and _is_plain(scope):
            scope[ROW] = MCP
            await self._mcp(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_plain(scope: Scope) -> bool:
    """Whether nothing of the path is encoded; for the router, that may make it another one."""
    raw: bytes = scope.get("raw_path") or b""
    path: str = scope["path"]
    return raw == path.encode()
