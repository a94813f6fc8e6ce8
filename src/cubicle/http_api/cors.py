"""Web pages of other origins that are MCP clients: CORS on the MCP paths, and on the metadata that leads to them."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle.chat.token_access import WELL_KNOWN
from cubicle.core.hosts import host_is_known, origin_is_known
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.urls import route_path

_METHODS = ("GET", "POST", "DELETE", "OPTIONS")
_EXPOSED = ("Mcp-Session-Id", "MCP-Protocol-Version", "WWW-Authenticate", "Retry-After", "X-Request-Id")
_MAX_AGE = 600


class _McpCors(CORSMiddleware):
    """Starlette's middleware with the service's rule for origins. Cookies are never let through: no page of another
    origin acts with what a browser has."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], *, locked: bool, hosts: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            max_age=_MAX_AGE,
        )
        self._origins = origins
        self._locked = locked
        self._hosts = hosts

    def is_allowed_origin(self, origin: str) -> bool:
        if self._origins:
            return "*" in self._origins or origin.lower() in self._origins
        return self._locked and origin_is_known(self._hosts, origin)


class Cors:
    """ASGI middleware. A request for a Host that is not the service's goes on without it, and is refused."""

    def __init__(
        self, app: ASGIApp, table: RouteTable, origins: Sequence[str], *, locked: bool, hosts: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._table = table
        self._hosts = hosts
        self._mcp = _McpCors(app, origins, locked=locked, hosts=hosts)
        self._public = CORSMiddleware(app, allow_origins=["*"], allow_methods=["GET"], allow_headers=["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._for(scope)(scope, receive, send)

    def _for(self, scope: Scope) -> ASGIApp:
        if scope["type"] != "http":
            return self._app
        path = route_path(scope)
        if not self._table.is_mcp(path) and not path.startswith(WELL_KNOWN):
            return self._app
        if not host_is_known(self._hosts, Headers(scope=scope).get("host")):
            return self._app
        return self._mcp if self._table.is_mcp(path) else self._public
