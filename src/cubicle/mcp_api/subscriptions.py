"""`subscriptions/listen`: a stream that tells one client when its chat's uploads change.

The SDK's `ListenHandler` does the protocol. Its bus is one for all clients; here every stream has a bus of its own,
which hears of one chat only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import ListenHandler, ResourcesListChanged, ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPError

from cubicle.core.chat import Chat
from cubicle.core.resource_uris import NoSuchResource, UploadUri
from cubicle.files.changes import Changes
from cubicle.mcp_api import jsonrpc

MAX_STREAMS = 1000
MAX_STREAMS_OF_A_TENANT = 500  # one leaves room for others
MAX_STREAMS_OF_A_CHAT = 32
MAX_URIS = 1000
_MAX_WAITING = 256
"""Events that wait for a client that does not read; one more ends its stream."""

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True)
class _ChatBus:
    """What the SDK's handler subscribes to: the changes of one chat, as events with the client's own URIs."""

    changes: Changes
    chat: Chat
    uris: dict[str, str]
    """Path to URI: two spellings of a URI can mean one file, and a client knows its own."""

    async def publish(self, event: ServerEvent) -> None:
        raise NotImplementedError("events come from the chat's uploads")

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        def hear(path: str) -> None:
            listener(ResourcesListChanged())
            if path in self.uris:
                listener(ResourceUpdated(self.uris[path]))

        return self.changes.listen(self.chat, hear)


@dataclass(frozen=True)
class Subscriptions:
    """All open streams: bounded, and ended together when the service ends."""

    changes: Changes
    _open: set[ListenHandler] = field(default_factory=set)

    async def serve(
        self,
        context: Context,
        params: types.SubscriptionsListenRequestParams,
        chat: Chat,
        expires: float | None = None,
    ) -> types.SubscriptionsListenResult:
        """One stream, until the client closes it, `close` is called, or what let the client in expires (Unix time)."""
        of_tenant = self.changes.count_of(chat.tenant)
        full = len(self._open) >= MAX_STREAMS or of_tenant >= MAX_STREAMS_OF_A_TENANT
        if full or self.changes.count(chat) >= MAX_STREAMS_OF_A_CHAT:
            raise MCPError(jsonrpc.TOO_MANY_STREAMS, "Too many streams listen already. Close one, or try again later.")
        uris = _uris(params.notifications.resource_subscriptions or [], chat)
        wanted = types.SubscriptionFilter(
            resources_list_changed=params.notifications.resources_list_changed,
            resource_subscriptions=list(uris.values()),
        )
        handler = ListenHandler(_ChatBus(self.changes, chat, uris), max_buffered_events=_MAX_WAITING)
        self._open.add(handler)
        left = max(1.0, expires - time.time()) if expires is not None else None
        ending = asyncio.get_running_loop().call_later(left, handler.close) if left is not None else None
        try:
            return await handler(context, params.model_copy(update={"notifications": wanted}))
        finally:
            self._open.discard(handler)
            if ending is not None:
                ending.cancel()

    def close(self) -> None:
        """Every stream says goodbye and ends."""
        for handler in self._open:
            handler.close()


def _uris(asked: list[str], chat: Chat) -> dict[str, str]:
    """The URIs among those asked for that can ever change for this caller, by path."""
    if len(asked) > MAX_URIS:
        raise MCPError(jsonrpc.INVALID_PARAMS, f"At most {MAX_URIS} resources can be listened to in one stream.")
    found: dict[str, str] = {}
    for uri in asked:
        try:
            parsed = UploadUri.parse(uri)
        except NoSuchResource:
            continue
        if parsed.chat_id == chat.id:
            found.setdefault(parsed.path, uri)
    return found
