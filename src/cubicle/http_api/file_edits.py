"""PUT, POST and DELETE /api/files/<chat>/<path>: what people do to files by hand."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from cubicle.core import problem
from cubicle.core.chat import Chat
from cubicle.core.paths import RESERVED, BadPath, is_plain, readable, relative
from cubicle.core.problem import Problem
from cubicle.fairness.fair_slots import FairSlots
from cubicle.files import browse
from cubicle.files.browse import ROOTS, Root
from cubicle.guest.file_changes import version_name
from cubicle.guest.operations import FileStat
from cubicle.guest.wire import ErrorCode
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import HttpRefusal, refuse
from cubicle.http_api.file_models import RenamedFile, SavedFile
from cubicle.http_api.request_bodies import chunks_of
from cubicle.http_api.urls import file_path
from cubicle.journal.journal import Journal
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import HOME, Machine
from cubicle.sandbox.fleet import Fleet, NoSandbox

MAX_SAVED = 8 * 1024**2
_REMOVE_SECONDS = 60.0
_CONFLICT = "The file was changed after you opened it. Nothing was saved: look at it again, or save over it."
_NO_CONDITION = (
    "Say which version is replaced: If-Match with the ETag of the file that was opened, or If-None-Match: * "
    "for a new file."
)
_REFUSALS: dict[ErrorCode, tuple[int, str]] = {
    ErrorCode.CHANGED: (412, _CONFLICT),
    ErrorCode.EXISTS: (409, "Something has this name already."),
    ErrorCode.NOT_FOUND: (404, "There is no such file, or the folder that it should go to is not there."),
    ErrorCode.NOT_DIRECTORY: (409, "A part of the path is a file."),
    ErrorCode.IS_DIRECTORY: (409, "There is a folder of that name."),
    ErrorCode.NOT_REGULAR: (409, "This is no plain file."),
    ErrorCode.OUTSIDE: (404, "The path leads out of the files of this chat."),
    ErrorCode.PERMISSION: (409, "The sandbox does not allow that here."),
    ErrorCode.READ_ONLY: (409, "This folder cannot be written."),
    ErrorCode.BAD_NAME: (400, "This cannot be the name of a file."),
    ErrorCode.NO_SPACE: (507, "The sandbox's disk is full. Delete something first."),
    ErrorCode.BAD_REQUEST: (409, "This sandbox runs an older guest, which cannot do that. Restart it, then try again."),
    ErrorCode.IO: (409, "The sandbox could not do that."),
}


class FileEditRoutes:
    """All of it is written to the journal, and told to whoever follows the chat."""

    def __init__(self, fleet: Fleet, journal: Journal) -> None:
        self._fleet = fleet
        self._journal = journal
        self._slots = FairSlots(total=64, of_tenant=16, of_chat=4)

    async def save(self, request: Request) -> Response:
        """Put a text in the place of the version that the request names."""
        chat, path = chat_of(request), _file(request)
        seen, new = request.headers.get("If-Match", ""), request.headers.get("If-None-Match", "").strip() == "*"
        if bool(seen) == new:
            raise HttpRefusal(Problem(428, _NO_CONDITION))
        async with self._machine(chat) as machine:
            if new:
                root, rest = _new_place(path)
                before, id = None, ""
            else:
                place = await _found(machine, path)
                root, rest, before = place.root, place.path, place.stat
                _require(before, seen)
                id = "" if root == "uploads" else uuid.uuid4().hex
            full = f"{ROOTS[root]}/{rest}"
            written = await machine.write(
                full,
                _bounded(request),
                roots=tuple(ROOTS.values()) if root != "uploads" else (ROOTS[root],),
                as_root=root == "uploads",
                sync=True,
                keep=id,
                expected=version_name(before.inode, before.size, before.mtime) if before is not None else "",
            )
            stat = await machine.stat(full, roots=tuple(ROOTS.values()))
            kept = written.change is not None and written.change.kept
        size = {"size_before": before.size} if before is not None else {}
        told = {"what": "made" if new else "saved", "path": full, "size": written.size, "id": id, "kept": kept}
        await self._told(chat, {**told, **size})
        own = stat.inode == written.inode and stat.size == written.size
        body = SavedFile(
            path=readable(browse.shown_path(root, rest)),
            size=written.size,
            etag=browse.version(stat).etag if own else "",
            id=id if kept else "",
        )
        return JSONResponse(body, 201 if new else 200)

    async def rename(self, request: Request) -> Response:
        """Give it another name or folder, within the same root."""
        chat, path = chat_of(request), _file(request)
        try:
            to = _named(request.query_params.get("to", ""))
        except BadPath as error:
            raise refuse(400, str(error)) from None
        async with self._machine(chat) as machine:
            root, rest = await _place(machine, path)
            into, renamed = _new_place(to)
            if into != root:
                raise refuse(
                    409, "A file keeps its place: outputs, uploads and workspace are separate. Copy it instead."
                )
            old, new = f"{ROOTS[root]}/{rest}", f"{ROOTS[root]}/{renamed}"
            await machine.versions.rename(old, new, roots=(ROOTS[root],), as_root=root == "uploads")
        await self._told(chat, {"what": "renamed", "path": old, "to": new})
        return JSONResponse(RenamedFile(path=readable(browse.shown_path(root, renamed))))

    async def remove(self, request: Request) -> Response:
        """Delete a file, a link or an empty folder; with `recursive=1` a folder and all that is in it."""
        chat, path = chat_of(request), _file(request)
        recursive = request.query_params.get("recursive", "") in ("1", "true")
        async with self._machine(chat) as machine:
            root, rest = await _place(machine, path)
            full, roots = f"{ROOTS[root]}/{rest}", (ROOTS[root],)
            stat = await machine.stat(full, follow=False, roots=roots)
            if stat.kind == "directory" and recursive and root != "uploads":
                await _remove_folder(machine, stat.path)  # as a command: a large one takes its time
            else:
                await machine.remove(full, recursive=recursive, as_root=root == "uploads", roots=roots)
        await self._told(chat, {"what": "deleted", "path": full, "size_before": stat.size})
        return Response(status_code=204)

    @asynccontextmanager
    async def _machine(self, chat: Chat) -> AsyncIterator[Machine]:
        """The chat's machine, woken if need be; what goes wrong in the block is told to the person."""
        try:
            async with self._slots.hold(chat), self._fleet.lease(chat, create=False) as machine:
                yield machine
        except (browse.NoSuchFile, NoSandbox):
            raise refuse(404, "There is no such file in this chat.") from None
        except ClientDisconnect:
            raise refuse(400, "The text broke off: nothing was saved.") from None
        except MachineError as error:
            status, detail = _REFUSALS.get(error.code, (503, "The sandbox could not do that now. Try again."))
            raise refuse(status, detail) from None

    async def _told(self, chat: Chat, fields: Mapping[str, object]) -> None:
        self._journal.record(chat, "edit", fields)
        await self._journal.settle(chat)


def _file(request: Request) -> str:
    path = file_path(request)
    if not path or path in ROOTS:
        raise refuse(400, "The address names no file.")
    return path


def _named(path: str) -> str:
    """A name that a person gives: what cannot be read, or turns the writing around, is none."""
    name = relative(path)
    if not name or name in ROOTS:
        raise BadPath("to is the path of the file under its new name.")
    if not all(is_plain(character) for character in name):
        raise BadPath("A file name cannot hold control characters, line breaks, or characters that turn the writing.")
    if any(part.startswith(RESERVED) for part in name.split("/")):
        raise BadPath(f"A file name cannot begin with {RESERVED}.")
    return name


def _new_place(path: str) -> tuple[Root, str]:
    """Where a path leads to that nothing has yet."""
    for root in ROOTS:
        rest = path.removeprefix(f"{root}/")
        if rest != path:
            return root, rest
    return "outputs", path


async def _found(machine: Machine, path: str) -> browse.FilePlace:
    place = await browse.find(machine, path)
    if place.stat.kind != "file":
        raise refuse(409, "This is a folder.")
    return place


async def _place(machine: Machine, path: str) -> tuple[Root, str]:
    """Where the path leads, itself: a link is not followed. Raises NoSuchFile."""
    for root, rest in browse.candidates(path):
        if not rest:
            continue
        try:
            await machine.stat(f"{ROOTS[root]}/{rest}", follow=False, roots=(ROOTS[root],))
        except MachineError as error:
            if error.code not in browse.ABSENT:
                raise
            continue
        return root, rest
    raise browse.NoSuchFile


def _require(stat: FileStat, seen: str) -> None:
    etag = browse.version(stat).etag
    if seen.strip() != "*" and etag not in [tag.strip() for tag in seen.split(",")]:
        raise HttpRefusal(Problem(412, _CONFLICT, {"ETag": etag}))


async def _bounded(request: Request) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in chunks_of(request):
        size += len(chunk)
        if size > MAX_SAVED:
            raise HttpRefusal(problem.too_large(MAX_SAVED))
        yield chunk


async def _remove_folder(machine: Machine, path: str) -> None:
    command = ["rm", "-rf", "--one-file-system", "--", path]
    exit, said = await machine.output(command, cwd=HOME, timeout=_REMOVE_SECONDS, limit=4096)
    if exit.status:
        raise refuse(409, "Not all of the folder could be deleted." if said else "The folder could not be deleted.")
