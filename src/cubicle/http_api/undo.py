"""POST /api/chats/<chat>/calls/<call>/undo: takes back what a file tool wrote, or makes it again."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.chat.activity import Activity
from cubicle.fairness.fair_slots import FairSlots
from cubicle.guest.wire import ErrorCode
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import HttpRefusal, refuse
from cubicle.http_api.models import FileUndone
from cubicle.journal.journal import Journal
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import WRITABLE_ROOTS
from cubicle.sandbox.fleet import Fleet

_CALL = re.compile(r"[0-9A-Za-z-]{1,64}")
_REFUSALS = {
    ErrorCode.CHANGED: (409, "The file has changed since this call, so nothing was put back. Look at it first."),
    ErrorCode.EXISTS: (409, "The file is like that already: nothing was done."),
    ErrorCode.NOT_KEPT: (410, "What this call replaced is no longer kept: only the latest changes are."),
    ErrorCode.PERMISSION: (409, "The file's folder may not be written, so nothing was put back."),
    ErrorCode.OUTSIDE: (409, "The file's path leads elsewhere now, so nothing was put back."),
    ErrorCode.NO_SPACE: (507, "The sandbox's disk is full, so nothing was put back."),
    ErrorCode.BAD_REQUEST: (410, "This sandbox runs an older guest, which keeps nothing. Restart it, then call again."),
}


class UndoRoutes:
    """The button of Activity that puts a file back."""

    def __init__(self, fleet: Fleet, activity: Activity, journal: Journal) -> None:
        self._fleet = fleet
        self._activity = activity
        self._journal = journal
        self._slots = FairSlots(total=256, of_tenant=64, of_chat=4)

    async def undo(self, request: Request) -> Response:
        chat, call = chat_of(request), request.path_params["call"]
        redo = request.query_params.get("redo", "") in ("1", "true")
        if not _CALL.fullmatch(call):
            raise refuse(404, "There is no call of this id.")
        async with self._slots.hold(chat, wait=False), self._fleet.lease(chat, create=False) as machine:
            try:
                done = await machine.undo(call, redo=redo, roots=WRITABLE_ROOTS)
            except MachineError as error:
                raise _refused(error) from None
        path = done.path[:4096]
        self._activity.tell_undo(chat, call, path, undone=not redo)
        self._journal.record(chat, "undo", {"call": call, "path": path, "undone": not redo})
        await self._journal.settle(chat)
        return JSONResponse(FileUndone(path=path, undone=not redo, size=done.size))


def _refused(error: MachineError) -> HttpRefusal:
    status, detail = _REFUSALS.get(error.code, (503, "The sandbox could not put the file back. Try again."))
    return refuse(status, detail)
