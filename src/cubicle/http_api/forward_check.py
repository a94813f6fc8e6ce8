"""The middleware that has requests answered by the member that owns their chat. MCP's handler asks by itself."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle.chat.links import Links
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.paths import BadPath, relative
from cubicle.http_api.chats import named_chat
from cubicle.http_api.errors import HttpRefusal
from cubicle.http_api.forwarding import Forwarder
from cubicle.http_api.home_feed import watcher_of
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import ROW, ROWS, ChatIn
from cubicle.http_api.urls import route_path, segment, tail

_CAPABILITIES = [(row, compile_path(row.path)[0]) for row in ROWS if row.chat is ChatIn.CAPABILITY]

_OF_DEMOS = frozenset(row.path for row in ROWS if row.chat is ChatIn.DEMO)


class ForwardCheck:
    """ASGI middleware, behind the access check: only there it is known whose chat a request names. The owner of the
    chat checks it once more, by what it knows of keys and links."""

    def __init__(self, app: ASGIApp, forwarder: Forwarder, table: RouteTable, links: Links) -> None:
        self._app = app
        self._forwarder = forwarder
        self._table = table
        self._links = links

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chat = self._chat(scope) if scope["type"] in ("http", "websocket") else None
        if chat is not None and await self._forwarder(scope, receive, send, chat):
            return
        await self._app(scope, receive, send)

    def _chat(self, scope: Scope) -> Chat | None:
        try:
            if self._table.named_chat(route_path(scope)) is not None:
                return named_chat(HTTPConnection(scope), self._table)
            if route_path(scope) in _OF_DEMOS:
                return watcher_of(HTTPConnection(scope)).demo_chat
            return self._by_capability(scope)
        except (BadChatId, BadPath, HttpRefusal):
            return None  # whoever answers says so

    def _by_capability(self, scope: Scope) -> Chat | None:
        row = next((row for row, pattern in _CAPABILITIES if pattern.match(route_path(scope))), None)
        if row is None:
            return None
        connection = HTTPConnection({**scope, ROW: row})
        grant = self._links.opened_capability(segment(connection, 2), relative(tail(connection)))
        return grant.chat if grant is not None else None
