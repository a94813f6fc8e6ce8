"""What the middleware and the router ask of the table of routes (routes.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.routing import BaseRoute, Match, Mount, Route, WebSocketRoute, compile_path
from starlette.types import Receive, Scope, Send

from cubicle.chat.authentication import Who
from cubicle.core import close_codes
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.identity import Identity, LinkAccess
from cubicle.core.link_scope import Opens
from cubicle.core.problem import OUT_OF_SCOPE, VIEW_ONLY, Problem
from cubicle.http_api import urls  # the kinds of parameters that the paths name, too
from cubicle.http_api.errors import response_to
from cubicle.http_api.routes import ANY_METHOD, MCP, ROW, ROWS, WEBSOCKET, ChatIn, Row

_PUBLIC = (Who.ANYBODY, Who.CAPABILITY)


class RouteTable:
    """The table with the MCP paths of one service."""

    def __init__(self, mcp_paths: Sequence[str] = (MCP.path,)) -> None:
        self.rows = (*(replace(MCP, path=path) for path in mcp_paths), *ROWS)
        self.mcp_paths = frozenset(mcp_paths)
        self._exact = {row.path: row.who for row in reversed(self.rows) if "{" not in row.path}
        public = {row.literal: row.who for row in self.rows if row.who in _PUBLIC}
        guarded = [row.path for row in ROWS if row.who not in _PUBLIC]
        self._open = {p: who for p, who in public.items() if not any(path.startswith(f"{p}/") for path in guarded)}
        """Beneath these nothing asks who it is, not even what no row answers."""
        self._of_chats = {row.literal.strip("/"): row.chat_segment for row in self.rows if row.who is Who.CHAT}
        """What comes before the chat id, for all that a link of the chat opens."""
        self._named = {row.literal.strip("/"): row.chat_segment for row in self.rows if row.chat is ChatIn.PATH}
        self._own_body = tuple({f"{row.literal}/" for row in ROWS if row.own_body_limit})
        self._in_a_tab = [compile_path(path)[0] for row in self.rows if row.in_a_tab for path in row.paths]

    def who(self, path: str) -> Who:
        """Who may use a path. What no row answers is not told to everybody, either."""
        if path in self._exact:
            return self._exact[path]
        for prefix, who in self._open.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                return who
        return Who.KEY if self.chat_id(path) is None else Who.CHAT

    def chat_id(self, path: str) -> str | None:
        """The chat that a path belongs to, if it belongs to one that a link can open."""
        return _chat_in(path, self._of_chats)

    def named_chat(self, path: str) -> str | None:
        """The chat that a path names, whoever may use it."""
        return _chat_in(path, self._named)

    def is_mcp(self, path: str) -> bool:
        return path in self.mcp_paths

    def is_in_a_tab(self, path: str) -> bool:
        return any(pattern.match(path) for pattern in self._in_a_tab)

    def has_own_body_limit(self, path: str) -> bool:
        return path in self.mcp_paths or path.startswith(self._own_body)

    def bind(self, **groups: object) -> list[BaseRoute]:
        """The routes of these groups of handlers, in the order of the table."""
        return list(bound(self.rows, groups))


def _chat_in(path: str, places: Mapping[str, int]) -> str | None:
    parts = path.strip("/").split("/")
    for length in (1, 2):
        segment = places.get("/".join(parts[:length]))
        if segment is not None and len(parts) >= segment:
            try:
                return Chat(parts[segment - 1]).id
            except BadChatId:
                return None
    return None


def bound(rows: Iterable[Row], groups: Mapping[str, object]) -> Iterable[BaseRoute]:
    for row in rows:
        group, _, attribute = row.handler.partition(".")
        if group in groups:
            handler = getattr(groups[group], attribute)
            yield from (_route(row, path, handler) for path in row.paths)


def _route(row: Row, path: str, handler: Any) -> BaseRoute:
    if row.mount:
        return Mount(path, app=handler)
    if row.methods == WEBSOCKET:
        return _TableWebSocketRoute(row, path, handler)
    return _TableRoute(row, path, handler)


class _TableRoute(Route):
    """Leaves its row in the scope."""

    def __init__(self, row: Row, path: str, handler: Any) -> None:
        super().__init__(path, handler, methods=None if row.methods == ANY_METHOD else row.methods.split())
        self.row = row

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if _is_another(scope) else _with_row(super().matches(scope), self.row)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (problem := refusal(scope, self.row)) is not None:
            await response_to(Request(scope), problem)(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


class _TableWebSocketRoute(WebSocketRoute):
    def __init__(self, row: Row, path: str, handler: Any) -> None:
        super().__init__(path, handler)
        self.row = row

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return _with_row(super().matches(scope), self.row)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (problem := refusal(scope, self.row)) is None:
            await super().handle(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": close_codes.VIEW_ONLY, "reason": problem.title})


def _is_another(scope: Scope) -> bool:
    """Whether the router tries the path with a slash more or less, to redirect to it, where that means something else.

    An encoded slash is a part of the name before it, and a DELETE without a name must not become that of everything.
    """
    raw: bytes = scope.get("raw_path") or b""
    encoded = raw.rstrip(b"/")[-3:].lower() == b"%2f"
    if scope["type"] != "http" or not raw or (encoded or raw.endswith(b"/")) == scope["path"].endswith("/"):
        return False
    return encoded or scope["method"] == "DELETE"


_OF_REPLAY = frozenset({"pages.replay", "timeline.get", "timeline.newest", "timeline.frame"})
_OF_FILE = frozenset({"pages.preview", "files.get", "file_views.pdf"})
"""What a link to the replay, or to one file, opens."""


def refusal(scope: Scope, row: Row) -> Problem | None:
    """Why a link that came does not open this route."""
    if only_looks(scope, row):
        return VIEW_ONLY
    return OUT_OF_SCOPE if out_of_scope(scope, row) else None


def out_of_scope(scope: Scope, row: Row) -> bool:
    """Whether a link came that opens a part of the chat, and this is none of it."""
    identity = scope.get("state", {}).get("identity")
    if not isinstance(identity, Identity) or identity.scope.is_whole or row.who is not Who.CHAT:
        return False
    if identity.scope.opens is Opens.REPLAY:
        return row.handler not in _OF_REPLAY
    return row.handler not in _OF_FILE or urls.tail(HTTPConnection(scope)) != identity.scope.path


def only_looks(scope: Scope, row: Row) -> bool:
    """Whether a link came that lets one look, to a route that changes something."""
    identity = scope.get("state", {}).get("identity")
    looks = isinstance(identity, Identity) and identity.access is not LinkAccess.CONTROL
    return looks and row.who is Who.CHAT and not row.for_viewers


def _with_row(found: tuple[Match, MutableMapping[str, Any]], row: Row) -> tuple[Match, MutableMapping[str, Any]]:
    match, child = found
    if match is not Match.NONE:
        child[ROW] = row
    return match, child
