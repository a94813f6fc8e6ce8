"""GET /api/chats/<chat>/changes and /versions/<path>: what was changed, and files as they were before."""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.core.chat import Chat
from cubicle.core.paths import readable
from cubicle.fairness.fair_slots import FairSlots
from cubicle.files import browse, search
from cubicle.files.file_history import PastChange, past_changes
from cubicle.files.search_output import FoundName
from cubicle.guest.wire import ErrorCode
from cubicle.http_api import content_headers
from cubicle.http_api.audited import note_audit
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.file_models import FileChangeRecord, FileChanges, FileVersion, FileVersionList, WrittenFile
from cubicle.http_api.file_response import FileResponse
from cubicle.http_api.file_search import iso
from cubicle.http_api.files import NO_CODE, absent_is_404
from cubicle.http_api.held_response import HeldResponse
from cubicle.http_api.urls import file_path
from cubicle.http_api.waking import Reading
from cubicle.journal.journal import Journal
from cubicle.journal.removed_parts import removed_parts, without
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.sandbox.fleet import Fleet

_MAX_FILES = 200
_MAX_LOOKED_AT = 20_000
_NOT_KEPT = "This version is no longer kept: only the latest ones are."


class FileHistoryRoutes:
    """The Changes view, and the versions of a file."""

    def __init__(self, fleet: Fleet, journal: Journal) -> None:
        self._fleet = fleet
        self._journal = journal
        self._reading = Reading(fleet)
        self._slots = FairSlots(total=16, of_tenant=8, of_chat=3)

    async def changes(self, request: Request) -> Response:
        """By the journal; and, of a sandbox that is up, every file that was written since then."""
        chat, since = chat_of(request), _since(request)
        async with self._slots.hold(chat):
            changes = await self._past(chat, since)
            files, complete = await self._written(chat, since)
            body: FileChanges = {
                "changes": [_record(change) for change in changes],
                "files": files,
                "complete": complete,
            }
            return JSONResponse(body, headers={"Cache-Control": "no-store"})

    async def _past(self, chat: Chat, since: float) -> list[PastChange]:
        hidden = await self._journal.scan(chat, removed_parts)
        return await self._journal.scan(chat, lambda entries: past_changes(without(entries, hidden), since))

    async def _written(self, chat: Chat, since: float) -> tuple[list[WrittenFile] | None, bool]:
        newest: list[tuple[float, str, WrittenFile]] = []
        complete = True
        try:
            async with self._fleet.look(chat) as machine:
                async for one in search.newer(machine, since, _MAX_LOOKED_AT):
                    if not isinstance(one, FoundName):
                        complete = False
                        continue
                    file: WrittenFile = {
                        "root": one.root,
                        "path": one.path,
                        "size": one.size,
                        "modified": iso(one.mtime),
                    }
                    heapq.heappush(newest, (one.mtime, one.path, file))
                    if len(newest) > _MAX_FILES:
                        heapq.heappop(newest)
                        complete = False
        except SandboxError:
            return None, True
        return [file for _, _, file in sorted(newest, key=lambda each: each[:2], reverse=True)], complete

    async def versions(self, request: Request) -> Response:
        """The list; with `id`, the file as it was before that change."""
        if content_headers.is_for_own_page(request.headers):
            raise refuse(403, NO_CODE)
        chat, path, id = chat_of(request), file_path(request), request.query_params.get("id", "")
        if id:
            return HeldResponse(lambda: self._version(request, chat, path, id))
        note_audit(request, skip=True)
        async with absent_is_404(), self._slots.hold(chat), self._reading.machine(request, chat) as machine:
            place = await browse.find(machine, path)
            try:
                kept = await machine.versions.of(place.stat.path, roots=place.folders)
            except MachineError as error:
                if error.code is not ErrorCode.BAD_REQUEST:  # a guest from before an upgrade keeps no versions
                    raise
                kept = []
            known = {change.id: change for change in await self._past(chat, 0.0)} if kept else {}
        versions = [_version(one.id, one.size, known.get(one.id)) for one in kept]
        return JSONResponse(FileVersionList(versions=versions), headers={"Cache-Control": "no-store"})

    @asynccontextmanager
    async def _version(self, request: Request, chat: Chat, path: str, id: str) -> AsyncIterator[Response]:
        name = path.rpartition("/")[2]
        headers = content_headers.file_headers(name, download=request.query_params.get("download") == "1")
        del headers["Accept-Ranges"]
        async with absent_is_404(), self._reading.machine(request, chat) as machine:
            place = await browse.find(machine, path)
            try:
                async with machine.versions.read(place.stat.path, id[:100], roots=place.folders) as reader:
                    headers["Content-Length"] = str(reader.length)
                    head = request.method == "HEAD"
                    yield Response(headers=headers) if head else FileResponse(request, reader, 200, headers)
            except MachineError as error:
                if error.code not in (ErrorCode.NOT_KEPT, ErrorCode.BAD_REQUEST):
                    raise
                raise refuse(410, _NOT_KEPT) from None


def _since(request: Request) -> float:
    try:
        since = float(request.query_params.get("since", "0")[:40])
    except ValueError:
        since = math.nan
    if not 0 <= since < 1e11:
        raise refuse(400, "since is a time in seconds since 1970.")
    return since


def _record(change: PastChange) -> FileChangeRecord:
    return FileChangeRecord(
        id=change.id,
        at=change.at,
        by=change.by,
        tool=change.tool,
        done=change.done,
        path=readable(change.path),
        shown=change.shown,
        to=readable(change.to),
        size_before=change.size_before,
        size_after=change.size_after,
        kept=change.kept,
        undone=change.undone,
        line=change.line,
        text_before=change.text_before,
        text_after=change.text_after,
    )


def _version(id: str, size: int, change: PastChange | None) -> FileVersion:
    if change is None:
        return FileVersion(id=id, size=size, at=None, by="", tool="")
    return FileVersion(id=id, size=size, at=change.at, by=change.by, tool=change.tool)
