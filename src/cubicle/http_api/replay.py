"""GET /api/chats/<chat>/replay: the journal of a chat as one HTML file, to be kept and opened without the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.assets import STATIC
from cubicle.http_api.chats import chat_of
from cubicle.http_api.content_headers import disposition
from cubicle.http_api.held_response import HeldResponse, unmade
from cubicle.journal import reading
from cubicle.journal.journal import Journal
from cubicle.journal.removed_parts import removed_parts, without
from cubicle.journal.replay_file import replay_pieces

TEMPLATE: Path = STATIC / "replay.html"
_AT_A_TIME = 32


class ReplayRoutes:
    """The button "Download replay"."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self._journal = journal
        self._folder = folder
        self._slots = FairSlots(total=16, of_tenant=8, of_chat=2)

    async def get(self, request: Request) -> Response:
        chat = chat_of(request)
        return HeldResponse(lambda: self._file(request, chat))

    @asynccontextmanager
    async def _file(self, request: Request, chat: Chat) -> AsyncIterator[Response]:
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Disposition": disposition(f"{chat.id}-replay.html", download=True),
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "private, no-store",
        }
        if request.method == "HEAD":
            yield unmade(headers)
            return
        async with self._slots.hold(chat):
            yield StreamingResponse(self._pieces(chat), headers=headers)

    async def _pieces(self, chat: Chat) -> AsyncIterator[bytes]:
        template = await asyncio.to_thread(TEMPLATE.read_bytes)
        hidden = await self._journal.scan(chat, removed_parts)
        folder = self._folder / chat.digest
        blob = partial(reading.read_blob, folder)
        pieces = replay_pieces(template, chat.id, time.time(), without(reading.all_entries(folder), hidden), blob)
        while piece := await asyncio.to_thread(_joined, pieces):
            yield piece


def _joined(pieces: Iterator[bytes]) -> bytes:
    return b"".join(islice(pieces, _AT_A_TIME))
