"""GET /api/chats/<chat>/events: what happens in a chat, as server-sent events that can be taken up again; and what was
before that: earlier calls, and the pictures that calls answered with."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from cubicle.chat.activity import Activity
from cubicle.chat.activity_events import ServiceEvent
from cubicle.core.chat import Chat
from cubicle.core.image_header import read_header
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.held_response import HeldResponse
from cubicle.http_api.models import EarlierCalls
from cubicle.journal.journal import Journal

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PICTURES = ("png", "jpeg")


class ActivityRoutes:
    """The stream behind the Activity panel."""

    def __init__(self, activity: Activity, journal: Journal) -> None:
        self._activity = activity
        self._journal = journal
        self._looks = FairSlots(total=64, of_tenant=16, of_chat=4)
        self._streams = FairSlots(total=4096, of_tenant=1024, of_chat=64)

    async def events(self, request: Request) -> Response:
        after = request.headers.get("Last-Event-ID", "")[:64]
        chat = chat_of(request)
        return HeldResponse(lambda: self._held(chat, after))

    async def earlier(self, request: Request) -> Response:
        """The calls before one, as events."""
        chat = chat_of(request)
        async with self._looks.hold(chat):
            events, more = await self._activity.earlier(chat, request.query_params.get("before", "")[:200])
        return JSONResponse(EarlierCalls(events=list(events), more=more), headers={"Cache-Control": "no-store"})

    async def picture(self, request: Request) -> Response:
        """A picture that a call answered with, as the journal keeps it."""
        chat, name = chat_of(request), request.path_params["picture"]
        async with self._looks.hold(chat):
            data = await self._journal.blob(chat, name) if _DIGEST.fullmatch(name) else None
        header = read_header(data) if data else None
        if data is None or header is None or header.kind not in _PICTURES:
            raise refuse(404, "There is no picture of this name, or it is no longer kept.")
        headers = {
            "Cache-Control": "private, max-age=3600",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(data, media_type=header.media_type, headers=headers)

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
