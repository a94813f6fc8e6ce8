"""The middleware that holds HTTP requests to the quotas: those that make or wake a sandbox. MCP's tools ask by
themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

from starlette.routing import compile_path

from cubicle.core.chat import BadChatId, Chat
from cubicle.core.problem import Problem
from cubicle.http_api.errors import response
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import ROWS, WEBSOCKET, Use
from cubicle.http_api.urls import route_path
from cubicle.quotas.limits import Overloaded, QuotaExceeded
from cubicle.quotas.quotas import Quotas

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_WRITES = frozenset({"uploads.save"})
_CHECKED = [
    (compile_path(path)[0], frozenset(row.methods.split()), row.handler in _WRITES)
    for row in ROWS
    if row.use is Use.WAKES and row.methods != WEBSOCKET
    for path in row.paths
]


class QuotaCheck:
    """ASGI middleware, behind the access check: it knows the tenant and the user."""

    def __init__(self, app: App, quotas: Quotas, table: RouteTable) -> None:
        self._app = app
        self._quotas = quotas
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writes = _writes(scope) if scope["type"] == "http" else None
        chat = self._chat(scope) if writes is not None else None
        if writes is None or chat is None:
            await self._app(scope, receive, send)
            return
        async with AsyncExitStack() as stack:
            try:
                user = scope.get("state", {}).get("user")
                await stack.enter_async_context(self._quotas.call(chat, user, writes=writes))
            except (QuotaExceeded, Overloaded) as over:
                status = 429 if isinstance(over, QuotaExceeded) else 503
                refusal = Problem(status, str(over), {"Retry-After": str(over.seconds)})
                await response(refusal)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    def _chat(self, scope: Scope) -> Chat | None:
        chat_id = self._table.chat_id(route_path(scope))
        try:
            return Chat(chat_id, scope.get("state", {})["tenant"]) if chat_id is not None else None
        except (BadChatId, KeyError):
            return None


def _writes(scope: Scope) -> bool | None:
    """Whether the request brings something onto the disk; None for one that is not held to quotas."""
    path, method = route_path(scope), scope["method"]
    for pattern, methods, writes in _CHECKED:
        if method in methods and pattern.match(path):
            return writes
    return None
