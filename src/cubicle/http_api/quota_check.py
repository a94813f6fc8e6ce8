"""The middleware that holds HTTP requests to the quotas: those that make or wake a sandbox. MCP's tools ask by
themselves. Before a sandbox is ended, what it used is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection
from starlette.routing import compile_path

from cubicle.core.chat import BadChatId, Chat
from cubicle.core.identity import Identity
from cubicle.core.problem import Problem
from cubicle.http_api.errors import response
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import ROWS, WEBSOCKET, ChatIn, Row, Use
from cubicle.http_api.urls import route_path
from cubicle.http_api.waking import wants_wake
from cubicle.quotas.limits import Overloaded, QuotaExceeded
from cubicle.quotas.quotas import Quotas

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_WRITES = frozenset({"uploads.save"})


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a request of one row is held to."""

    writes: bool = False
    """It brings something onto the disk."""
    by_query: bool = False
    """It wakes the sandbox only with `wake=1`."""
    ends: bool = False
    """It ends the sandbox."""


def _of_row(row: Row) -> _Checked | None:
    if row.methods == WEBSOCKET:
        return None
    if row.use is Use.WAKES:
        return _Checked(row.handler in _WRITES)
    if row.use is Use.ENDS:
        return _Checked(ends=True)
    return _Checked(by_query=True) if row.reads_files and row.chat is ChatIn.PATH else None


_CHECKED = [
    (compile_path(path)[0], frozenset(row.methods.split()), checked)
    for row in ROWS
    if (checked := _of_row(row)) is not None
    for path in row.paths
]


class QuotaCheck:
    """ASGI middleware, behind the access check: it knows the tenant and the user."""

    def __init__(self, app: App, quotas: Quotas, table: RouteTable) -> None:
        self._app = app
        self._quotas = quotas
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        checked = _find(scope) if scope["type"] == "http" else None
        chat = self._chat(scope) if checked is not None else None
        if checked is None or chat is None:
            await self._app(scope, receive, send)
        elif checked.ends:
            await self._quotas.count_cpu(chat)
            await self._app(scope, receive, send)
        else:
            await self._held(scope, receive, send, chat, writes=checked.writes)

    async def _held(self, scope: Scope, receive: Receive, send: Send, chat: Chat, *, writes: bool) -> None:
        identity = scope.get("state", {}).get("identity")
        user, key_id = (identity.user, identity.key_id) if isinstance(identity, Identity) else (None, "")
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._quotas.call(chat, user, key_id, writes=writes))
            except (QuotaExceeded, Overloaded) as over:
                status = 429 if isinstance(over, QuotaExceeded) else 503
                refusal = Problem(status, str(over), {"Retry-After": str(over.seconds)})
                await response(refusal)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    def _chat(self, scope: Scope) -> Chat | None:
        chat_id, connection = self._table.named_chat(route_path(scope)), HTTPConnection(scope)
        try:
            tenant = scope.get("state", {})["tenant"]
            asked = connection.query_params.get("tenant", "") if self._table.chat_id(route_path(scope)) is None else ""
            return Chat(chat_id, asked or tenant) if chat_id is not None else None
        except (BadChatId, KeyError):
            return None


def _find(scope: Scope) -> _Checked | None:
    """What the request is held to; None for one that is not."""
    path, method = route_path(scope), scope["method"]
    for pattern, methods, checked in _CHECKED:
        if method in methods and pattern.match(path):
            return checked if not checked.by_query or _wakes(scope) else None
    return None


def _wakes(scope: Scope) -> bool:
    return b"wake" in scope.get("query_string", b"") and wants_wake(HTTPConnection(scope))
