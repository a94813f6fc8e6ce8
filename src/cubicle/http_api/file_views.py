"""Other ways to see a file: the end of a log as it grows, and an office file as PDF."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.files import browse, office, tail
from cubicle.http_api import content_headers
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.file_models import TailPiece
from cubicle.http_api.files import absent_is_404
from cubicle.http_api.held_response import HeldResponse, unmade
from cubicle.http_api.urls import file_path
from cubicle.http_api.waking import Reading
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Fleet


class FileViewRoutes:
    """None of it is a use of the sandbox."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._reading = Reading(fleet)
        self._followers = FairSlots(total=512, of_tenant=128, of_chat=16)
        self._conversions = FairSlots(total=4, of_tenant=2, of_chat=2)
        self._over = asyncio.Event()

    def end_streams(self) -> None:
        """Those who follow would hold up the end of the service."""
        self._over.set()

    async def tail(self, request: Request) -> Response:
        """The end of a file, then what is added to it, as server-sent events (TailPiece)."""
        chat, path = chat_of(request), file_path(request)
        return HeldResponse(lambda: self._followed(request, chat, path))

    @asynccontextmanager
    async def _followed(self, request: Request, chat: Chat, path: str) -> AsyncIterator[Response]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        async with self._followers.hold(chat, wait=False), absent_is_404(), self._fleet.look(chat) as machine:
            place = await browse.find(machine, path)
            if place.stat.kind != "file":
                raise browse.NoSuchFile
            async with aclosing(self._pieces(machine, place)) as pieces:
                yield StreamingResponse(pieces, headers=headers, media_type="text/event-stream")

    async def _pieces(self, machine: Machine, place: browse.FilePlace) -> AsyncGenerator[str]:
        yield "retry: 2000\n\n"
        try:
            async with aclosing(tail.follow(machine, place, self._over)) as pieces:
                async for piece in pieces:
                    if piece is None:
                        yield ": nothing new\n\n"
                    else:
                        yield _event(start=piece.start, text=piece.text, size=piece.size, reset=piece.reset, stopped="")
        except MachineError:
            yield _event(start=0, text="", size=0, reset=False, stopped="The file is no longer there.")
        except SandboxError:
            why = machine.stopped or "The sandbox was stopped."
            yield _event(start=0, text="", size=0, reset=False, stopped=why)

    async def pdf(self, request: Request) -> Response:
        """An office file as PDF. 501 where the image has no LibreOffice, 422 for a file that it cannot convert."""
        chat, path = chat_of(request), file_path(request)
        name = path.rpartition("/")[2]
        return HeldResponse(lambda: self._converted(request, chat, path, f"{name.rpartition('.')[0]}.pdf"))

    @asynccontextmanager
    async def _converted(self, request: Request, chat: Chat, path: str, name: str) -> AsyncIterator[Response]:
        headers = content_headers.file_headers(name, download=request.query_params.get("download") == "1")
        del headers["Accept-Ranges"]
        async with absent_is_404(), self._reading.machine(request, chat) as machine:
            place = await browse.find(machine, path)
            if place.stat.kind != "file":
                raise browse.NoSuchFile
            if place.path.rpartition(".")[2].lower() not in office.ENDINGS:
                raise refuse(422, "This is not a file of an office program.")
            if request.method == "HEAD":
                yield unmade(headers)
                return
            try:
                async with (
                    self._conversions.hold(chat),
                    office.converted(machine, place, browse.version(place.stat).etag) as pieces,
                ):
                    yield StreamingResponse(pieces, headers=headers)
            except office.NoOffice:
                raise refuse(501, "The image of this sandbox has no LibreOffice.") from None
            except office.Unconvertible:
                raise refuse(422, "LibreOffice could not convert this file.") from None


def _event(**fields: object) -> str:
    piece = TailPiece(**fields)  # type: ignore[typeddict-item]
    return f"data: {json.dumps(piece)}\n\n"
