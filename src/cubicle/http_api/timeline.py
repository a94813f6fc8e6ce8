"""The replay of a chat in the pages: its time line, and the pictures of its browser."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.browser.frame_file import FrameName
from cubicle.browser.frame_store import FrameStore, KeptFrame
from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.models import FrameRecord, Timeline
from cubicle.journal.journal import Journal
from cubicle.journal.removed_parts import removed_parts
from cubicle.journal.timeline import Step, step_of

PAGE = 500
"""Entries of one answer."""


class TimelineRoutes:
    """For the page of the replay. Looking at it starts nothing."""

    def __init__(self, journal: Journal, frames: FrameStore) -> None:
        self._journal = journal
        self._frames = frames
        self._slots = FairSlots(total=16, of_tenant=8, of_chat=2)

    async def get(self, request: Request) -> Response:
        """Entries after `after`; with the first ones, all pictures; later, those that were taken after `since`."""
        chat, after = chat_of(request), _whole(request, "after")
        since = _whole(request, "since")
        async with self._slots.hold(chat):
            steps, last, more = await self._steps(chat, after)
            kept = [] if more else await asyncio.to_thread(self._frames.listed, chat, since=since / 1000)
        answer = Timeline(entries=steps, next=last, more=more, frames=[_record(frame) for frame in kept])
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    async def _steps(self, chat: Chat, after: int) -> tuple[list[Step], int, bool]:
        hidden = await self._journal.scan(chat, removed_parts)
        entries = await self._journal.entries(chat, after, PAGE)
        shown = [entry for entry in entries if not any(first <= entry.number <= last for first, last in hidden)]
        steps = [step for entry in shown if (step := step_of(entry)) is not None]
        return steps, max((entry.number for entry in entries), default=after), len(entries) >= PAGE

    async def frame(self, request: Request) -> Response:
        name, chat = FrameName.of_id(request.path_params["frame"]), chat_of(request)
        return await self._picture(chat, name, "private, max-age=86400, immutable")

    async def newest(self, request: Request) -> Response:
        """The last picture that was taken, for a card of the chat."""
        chat = chat_of(request)
        return await self._picture(chat, self._frames.newest(chat), "private, no-cache")

    async def _picture(self, chat: Chat, name: FrameName | None, cache: str) -> Response:
        picture = await asyncio.to_thread(self._frames.picture, chat, name) if name is not None else None
        if name is None or picture is None:
            raise refuse(404, "There is no such picture.")
        headers = {
            "Cache-Control": cache,
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Content-Disposition": "inline",
            "ETag": f'"{name.digest}"',
        }
        return Response(picture, media_type="image/jpeg", headers=headers)


def _record(frame: KeptFrame) -> FrameRecord:
    facts = frame.facts
    return FrameRecord(
        id=frame.name.id, at=frame.name.at / 1000, width=facts.width, height=facts.height, url=facts.url,
        title=facts.title,
    )  # fmt: skip


def _whole(request: Request, name: str) -> int:
    """A number of the query. Raises 400."""
    text = request.query_params.get(name, "0")
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise refuse(400, f"{name} has to be a whole number.")
    return int(text)
