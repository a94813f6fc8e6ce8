"""Around every request: its work is done in the fair queue, charged to whom it comes from."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from cubicle.chat.key_attempts import network_of
from cubicle.chat.token_access import TokenAccess
from cubicle.core.caller import CHAT_HEADERS
from cubicle.core.keys import KeyRing
from cubicle.fairness.fair_queue import STRANGERS, FairQueue, LoopShare, current, metered
from cubicle.http_api.routes import HEALTH
from cubicle.http_api.uvicorn_http import connection_under
from cubicle.http_api.uvicorn_ws import ClientSocket

SHARE = "cubicle.share"
"""Where, in the ASGI scope, whoever finds out more of the caller can say whom the rest is charged to."""
_MAX_NAME = 64
_CHAT_HEADERS = frozenset(name.lower().encode() for name in CHAT_HEADERS)


class FairShare:
    """ASGI middleware, before all others. No tenant has a name such as those of strangers and of `/health`."""

    def __init__(self, app: ASGIApp, queue: FairQueue, ring: KeyRing, tokens: TokenAccess | None = None) -> None:
        self._app = app
        self._tokens = tokens
        self._queue = queue
        self._ring = ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        share = scope[SHARE] = self._share(scope)
        if scope["type"] == "websocket" and (socket := ClientSocket.under(scope)) is not None:
            socket.meter(self._queue, share)
        if share.tenant != HEALTH and (connection := connection_under(scope)) is not None:
            connection.charge_to(share)
        charged = current.set((self._queue, share))
        try:
            await metered(self._app(scope, receive, send), self._queue, share)  # type: ignore[arg-type]
        finally:
            current.reset(charged)

    def _share(self, scope: Scope) -> LoopShare:
        if scope["path"] == HEALTH:
            return LoopShare(HEALTH, _network(scope))
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        authorization = shown[0].decode("latin-1") if shown else None
        tenant = self._ring.tenant(authorization)
        if tenant is None and self._tokens is not None:
            tenant = self._tokens.tenant(authorization)
        if tenant is None:
            return stranger(scope)
        chat = next((value.decode("latin-1") for name, value in scope["headers"] if name in _CHAT_HEADERS), "")
        return LoopShare(tenant, (chat or scope["path"])[:_MAX_NAME])


def stranger(scope: Scope) -> LoopShare:
    """The share of somebody of whom only the address is known."""
    return LoopShare(STRANGERS, _network(scope))


def _network(scope: Scope) -> str:
    return network_of(str((scope.get("client") or ("",))[0]))


async def charge_to(scope: Scope, tenant: str, chat: str = "") -> None:
    """From here on the request is this tenant's, and waits for its turns: those of strangers are others'."""
    share, charged = scope.get(SHARE), current.get()
    if not isinstance(share, LoopShare):
        return
    if charged is not None:
        charged[0].settle(share)
    was, share.tenant, share.chat = share.tenant, tenant, chat[:_MAX_NAME]
    if was != tenant and charged is not None and charged[0].is_awaited:
        await asyncio.sleep(0)
