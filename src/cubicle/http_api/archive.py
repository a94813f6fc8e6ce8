"""GET /files/<chat>/archive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.files.archive import MAX_AT_ONCE, Archive
from cubicle.http_api.chats import chat_of
from cubicle.http_api.content_headers import disposition
from cubicle.http_api.held_response import HeldResponse, unmade
from cubicle.http_api.waking import AsleepPage, Reading
from cubicle.sandbox.fleet import Fleet


class ArchiveRoutes:
    """A file called `archive` is reached as `outputs/archive`."""

    def __init__(self, fleet: Fleet, asleep_page: AsleepPage | None = None) -> None:
        self._reading = Reading(fleet, asleep_page)
        self._archives = FairSlots(total=MAX_AT_ONCE, of_tenant=8, of_chat=4)

    async def get(self, request: Request) -> Response:
        chat = chat_of(request)
        if (page := await self._reading.for_a_person(request, chat)) is not None:
            return page
        return HeldResponse(lambda: self._zip(request, chat))

    @asynccontextmanager
    async def _zip(self, request: Request, chat: Chat) -> AsyncIterator[Response]:
        headers = {
            "Content-Type": "application/zip",
            "Content-Disposition": disposition(f"{chat.id}.zip", download=True),
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "private, no-store",
        }
        async with self._reading.machine(request, chat) as machine:
            if request.method == "HEAD":
                yield unmade(headers)
            else:
                async with self._archives.hold(chat):
                    yield StreamingResponse(Archive(machine).chunks(), headers=headers)
