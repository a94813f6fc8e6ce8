"""The Origin check on every WebSocket and on every request that changes something, key or no key."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle.core.origins import SAFE_METHODS, origin_is_ours
from cubicle.core.problem import MEDIA_TYPE, Problem
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.urls import route_path

FOREIGN = Problem(403, "This page is not one of the service's own: its Origin is refused (PUBLIC_BASE_URL names it).")


def from_our_page(connection: HTTPConnection, known: Sequence[str] = ()) -> bool:
    """Whether the request comes from one of the service's own pages, or from no page at all."""
    headers = connection.headers
    return all(
        origin_is_ours(origin.strip(), headers.get("host", "").strip(), known) for origin in headers.getlist("origin")
    )


class OriginCheck:
    """Refuses what foreign pages and sandboxed files ask for: 403, and no handshake for a WebSocket.

    The MCP paths are passed: their own gate checks the origin, and clients that are pages of other sites are welcome
    there when they show a key.
    """

    def __init__(self, app: ASGIApp, known: Sequence[str] = (), table: RouteTable | None = None) -> None:
        self._app = app
        self._table = table or RouteTable()
        self._known = tuple(address for address in known if address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        guarded = kind == "websocket" or (kind == "http" and scope["method"] not in SAFE_METHODS)
        if not guarded or self._table.is_mcp(route_path(scope)) or from_our_page(HTTPConnection(scope), self._known):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await Response(FOREIGN.body(), FOREIGN.status, media_type=MEDIA_TYPE)(scope, receive, send)
