"""GET /api/chats/<chat>/calls/<call>/change: both sides of what a file tool changed, to be compared whole."""

from __future__ import annotations

import asyncio
import hashlib

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.fairness.fair_slots import FairSlots
from cubicle.guest.wire import ErrorCode
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.models import ChangeSide, FileSides
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import WRITABLE_ROOTS, Machine
from cubicle.sandbox.fleet import Fleet

MAX_SIDE = 8 * 1024**2
_CALLS = 64


class ChangeRoutes:
    """The button of Activity that compares the whole files."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._slots = FairSlots(total=16, of_tenant=8, of_chat=2)

    async def get(self, request: Request) -> Response:
        """What is kept of the change, and what is in its place now; which is which, their hashes tell."""
        chat, call = chat_of(request), request.path_params["call"][:_CALLS]
        async with self._slots.hold(chat), self._fleet.look(chat, hold=True) as machine:
            try:
                path, kept = await _read(machine, "/", call)
                try:
                    _, here = await _read(machine, path, None)
                except MachineError as error:
                    if error.code is not ErrorCode.NOT_FOUND:
                        raise
                    here = b""
            except MachineError as error:
                raise _refused(error) from None
        sides = [await asyncio.to_thread(_side, content) for content in (kept, here)]
        return JSONResponse(FileSides(path=path, sides=sides), headers={"Cache-Control": "no-store"})


async def _read(machine: Machine, path: str, kept: str | None) -> tuple[str, bytes]:
    async with machine.read(path, length=MAX_SIDE + 1, roots=WRITABLE_ROOTS, kept=kept) as reader:
        content = b"".join([chunk async for chunk in reader])
        if len(content) > MAX_SIDE:
            raise MachineError(ErrorCode.TOO_BIG, "The file is too large to be compared.")
        return reader.stat.path, content


def _side(content: bytes) -> ChangeSide:
    try:
        text = None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        text = None
    return ChangeSide(hash=hashlib.sha256(content).hexdigest(), text=text)


def _refused(error: MachineError) -> Exception:
    match error.code:
        case ErrorCode.TOO_BIG:
            return refuse(
                413, f"One of the files is larger than {MAX_SIDE // 1024**2} MiB, so they are not compared here."
            )
        case ErrorCode.NOT_KEPT | ErrorCode.NOT_FOUND | ErrorCode.IS_DIRECTORY | ErrorCode.OUTSIDE:
            return refuse(410, "What this call replaced is no longer kept: only the latest changes are.")
        case _:
            return refuse(409, "The file cannot be compared now: it has changed since.")
