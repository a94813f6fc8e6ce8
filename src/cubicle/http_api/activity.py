"""GET /api/chats/<chat>/events: what happens in a chat, as server-sent events that can be taken up again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cubicle.chat.activity import Activity
from cubicle.chat.activity_events import ServiceEvent
from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.chats import chat_of
from cubicle.http_api.held_response import HeldResponse


class ActivityRoutes:
    """The stream behind the Activity panel."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._streams = FairSlots(total=4096, of_tenant=1024, of_chat=64)

    async def events(self, request: Request) -> Response:
        after = request.headers.get("Last-Event-ID", "")[:64]
        chat = chat_of(request)
        return HeldResponse(lambda: self._held(chat, after))

    @asynccontextmanager
    async def _held(self, chat: Chat, after: str) -> AsyncIterator[Response]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        async with self._streams.hold(chat, wait=False):
            yield StreamingResponse(self._stream(chat, after), media_type="text/event-stream", headers=headers)

    async def _stream(self, chat: Chat, after: str) -> AsyncIterator[str]:
        service: ServiceEvent = {"type": "service", "id": self._activity.boot}
        yield f"retry: 2000\ndata: {json.dumps(service)}\n\n"
        async for event in self._activity.follow(chat, after):
            if event is None:
                yield ": nothing new\n\n"
            else:
                yield f"id: {event.id}\ndata: {json.dumps(event.fields)}\n\n"
