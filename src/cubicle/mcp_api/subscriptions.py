"""`subscriptions/listen`: a stream that tells one client when its chat's uploads change, and how its tasks go.

It does what the SDK's `ListenHandler` does. That one knows no tasks, and has one bus for all clients.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import mcp_types as types
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from cubicle.core.chat import Chat
from cubicle.core.resource_uris import NoSuchResource, UploadUri
from cubicle.files.changes import Changes
from cubicle.log import chat_fields
from cubicle.mcp_api import jsonrpc
from cubicle.mcp_api.request_context import Context
from cubicle.mcp_api.task_methods import TaskMethods

log = logging.getLogger(__name__)

MAX_STREAMS = 1000
MAX_STREAMS_OF_A_TENANT = 500  # one leaves room for others
MAX_STREAMS_OF_A_CHAT = 32
MAX_URIS = 1000
_MAX_WAITING = 256
"""Events that wait for a client that does not read; one more ends its stream."""


class _TaskParams(types.NotificationParams):
    model_config = ConfigDict(extra="allow")


class _TaskNotification(types.Notification[_TaskParams, Literal["notifications/tasks"]]):
    """Of the extension: the task as `tasks/get` would tell it."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: _TaskParams


Event = Callable[[dict[str, Any]], Awaitable[Any]]
"""Makes a notification with this `_meta`, when its turn comes; None if there is nothing to tell any more."""


class ListenStream:
    """What one client is to be told, in its order. `put` never waits."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._events: deque[tuple[str, Event]] = deque()
        self._news = asyncio.Event()
        self._over = False

    def put(self, name: str, event: Event) -> None:
        """Tell this; an event of the same name that waits stands for both."""
        if self._over or any(name == waiting for waiting, _ in self._events):
            return
        if len(self._events) >= _MAX_WAITING:
            log.warning("a stream of news has a client that does not read: it ends", extra=chat_fields(self._chat))
            self._over = True
        else:
            self._events.append((name, event))
        self._news.set()

    def close(self) -> None:
        """End it, after what waits."""
        self._over = True
        self._news.set()

    async def serve(self, context: Context, honored: types.SubscriptionFilter) -> types.SubscriptionsListenResult:
        """Say what will be told, then tell it, until the stream is closed."""
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        params = types.SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=meta)
        notification: Any = types.SubscriptionsAcknowledgedNotification(params=params)
        await context.session.send_notification(notification, context.request_id)
        while self._events or not self._over:
            if not self._events:
                self._news.clear()
                await self._news.wait()
                continue
            _, event = self._events.popleft()
            notification = await event(meta)
            if notification is not None:
                await context.session.send_notification(notification, context.request_id)
        return types.SubscriptionsListenResult(_meta=meta)


@dataclass(frozen=True)
class Subscriptions:
    """All open streams: bounded, and ended together when the service ends."""

    changes: Changes
    _open: set[ListenStream] = field(default_factory=set)

    async def serve(
        self,
        context: Context,
        params: types.SubscriptionsListenRequestParams,
        chat: Chat,
        tasks: TaskMethods,
        expires: float | None = None,
    ) -> types.SubscriptionsListenResult:
        """One stream, until the client closes it, `close` is called, or what let the client in expires (Unix time)."""
        wanted = params.notifications
        uris = _uris(wanted.resource_subscriptions or [], chat)
        running = await tasks.find(context, chat, (wanted.model_extra or {}).get("taskIds"))
        of_tenant = self.changes.count_of(chat.tenant)
        full = len(self._open) >= MAX_STREAMS or of_tenant >= MAX_STREAMS_OF_A_TENANT
        if full or self.changes.count(chat) >= MAX_STREAMS_OF_A_CHAT:
            raise MCPError(jsonrpc.TOO_MANY_STREAMS, "Too many streams listen already. Close one, or try again later.")
        honored = types.SubscriptionFilter.model_validate(
            {
                "resourcesListChanged": wanted.resources_list_changed or None,
                "resourceSubscriptions": list(uris.values()) or None,
            }
            | ({"taskIds": list(running)} if running else {})
        )
        stream = ListenStream(chat)
        with ExitStack() as stack:
            stack.enter_context(self._opened(stream, expires))
            stack.callback(self.changes.listen(chat, _upload_news(stream, honored, uris)))
            for id, call in running.items():
                tell = _task_news(stream, tasks, chat, id)
                if call is not None:
                    stack.enter_context(call.watched(tell))
                tell()  # it may have changed since the client knew of it
            return await stream.serve(context, honored)

    @contextmanager
    def _opened(self, stream: ListenStream, expires: float | None) -> Iterator[None]:
        left = max(1.0, expires - time.time()) if expires is not None else None
        ending = asyncio.get_running_loop().call_later(left, stream.close) if left is not None else None
        self._open.add(stream)
        try:
            yield
        finally:
            self._open.discard(stream)
            if ending is not None:
                ending.cancel()

    def close(self) -> None:
        """Every stream says goodbye and ends."""
        for stream in self._open:
            stream.close()


def _upload_news(
    stream: ListenStream, honored: types.SubscriptionFilter, uris: dict[str, str]
) -> Callable[[str], None]:
    """`uris`: path to URI. Two spellings of a URI can mean one file, and a client knows its own."""

    async def list_changed(meta: dict[str, Any]) -> Any:
        return types.ResourceListChangedNotification(params=types.NotificationParams(_meta=meta))

    def updated(uri: str) -> Event:
        async def made(meta: dict[str, Any]) -> Any:
            params = types.ResourceUpdatedNotificationParams(uri=uri, _meta=meta)
            return types.ResourceUpdatedNotification(params=params)

        return made

    def hear(path: str) -> None:
        if honored.resources_list_changed:
            stream.put("list", list_changed)
        if path in uris:
            stream.put(f"resource {uris[path]}", updated(uris[path]))

    return hear


def _task_news(stream: ListenStream, tasks: TaskMethods, chat: Chat, id: str) -> Callable[[], None]:
    async def made(meta: dict[str, Any]) -> Any:
        fields = await tasks.describe(chat, id)
        return None if fields is None else _TaskNotification(params=_TaskParams(_meta=cast(Any, meta), **fields))

    return lambda: stream.put(f"task {id}", made)


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
