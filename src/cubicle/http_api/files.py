"""GET /files/<chat>/<path>; and how a file is answered, for the other routes that read one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.chat.links import Links
from cubicle.core import http_ranges
from cubicle.core.chat import Chat
from cubicle.core.paths import readable
from cubicle.core.problem import Problem
from cubicle.fairness.fair_slots import FairSlots
from cubicle.files import browse
from cubicle.http_api import content_headers
from cubicle.http_api.audited import note_audit
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import HttpRefusal, refuse
from cubicle.http_api.file_response import FileResponse
from cubicle.http_api.held_response import HeldResponse
from cubicle.http_api.large_json import LargeJsonResponse
from cubicle.http_api.models import EntryKind, FolderEntry, FolderListing
from cubicle.http_api.urls import file_path
from cubicle.http_api.waking import AsleepPage, Reading
from cubicle.machine.errors import SandboxError
from cubicle.machine.files import FileReader
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Fleet, NoSandbox

_NO_FILE = "There is no such file in this chat."
NO_CODE = "Files of a chat are not run as scripts or styles of the service's own pages."

Headers = Callable[[str], dict[str, str]]
"""From a file's name to the headers that make it safe where it is shown."""


class FileRoutes:
    """All reading of files over HTTP. A chat without a sandbox has none, and gets none by being asked.

    None of it is a use of the sandbox, nor starts one that sleeps (cubicle.http_api.waking).
    """

    def __init__(self, fleet: Fleet, links: Links, asleep_page: AsleepPage | None = None) -> None:
        self._fleet = fleet
        self._links = links
        self._listings = FairSlots(total=4, of_tenant=2, of_chat=64)
        self._building = asyncio.Lock()  # each thread that works takes as much of the interpreter as the event loop
        self._reading = Reading(fleet, asleep_page)

    async def top(self, request: Request) -> Response:
        """The listing of all folders."""
        return await self.get(request)

    async def get(self, request: Request) -> Response:
        """The file; a JSON listing if the path is a folder."""
        if content_headers.is_for_own_page(request.headers):
            raise refuse(403, NO_CODE)
        chat = chat_of(request)
        path = file_path(request)
        if not path and not self._fleet.has(chat):
            note_audit(request, skip=True)
            return JSONResponse(_listing("", [], complete=True))
        if (page := await self._reading.for_a_person(request, chat)) is not None:
            return page
        download = request.query_params.get("download", "") not in ("", "0", "false")

        def headers(name: str) -> dict[str, str]:
            return content_headers.file_headers(name, download=download)

        return HeldResponse(lambda: self._answer(request, chat, path, headers))

    async def has(self, request: Request) -> bool:
        """Whether there is what the address names behind its chat. A sandbox that sleeps may have it."""
        chat, path = chat_of(request), file_path(request)
        try:
            async with self._fleet.look(chat) as machine:
                await browse.find(machine, path)
        except (browse.NoSuchFile, NoSandbox):
            return False
        except SandboxError:
            return True
        return True

    @asynccontextmanager
    async def _answer(self, request: Request, chat: Chat, path: str, headers: Headers) -> AsyncIterator[Response]:
        async with absent_is_404(), self._reading.machine(request, chat) as machine:
            place = await browse.find(machine, path) if path else None
            if place is None or place.stat.kind == "directory":
                note_audit(request, skip=True)
                yield await self._folder(request, chat, machine, path)
                return
            async with file_answer(request, machine, place, headers) as response:
                yield response

    async def _folder(self, request: Request, chat: Chat, machine: Machine, path: str) -> Response:
        hidden = request.query_params.get("hidden", "") not in ("", "0", "false")
        await machine.ping(60)  # before: whoever waits for a sandbox that hangs takes no place from others
        async with self._listings.hold(chat):
            found = await browse.listing(machine, path, hidden=hidden)
            async with self._building:
                return await asyncio.to_thread(_folder, path, found, self._links.files(chat, request.state.link))


def _folder(path: str, found: browse.Listing, url: Callable[[str], str]) -> Response:
    """Of ten thousand entries it takes a while, so not in the event loop."""
    entries = [_entry(listed, url) for listed in found.entries]
    return LargeJsonResponse(_listing(path, entries, complete=found.complete), headers={"Cache-Control": "no-store"})


def _entry(listed: browse.Listed, url: Callable[[str], str]) -> FolderEntry:
    entry = listed.entry
    slash = "/" if entry.kind == "directory" else ""
    return FolderEntry(
        name=readable(entry.path),
        kind=cast(EntryKind, entry.kind),
        size=entry.size,
        modified=http_ranges.Version(0, entry.mtime, 0).modified.isoformat().replace("+00:00", "Z"),
        root=listed.root,
        url=url(listed.shown + slash),
    )


@asynccontextmanager
async def absent_is_404() -> AsyncIterator[None]:
    """Around all that looks for a file of a chat and reads it."""
    try:
        yield
    except (browse.NoSuchFile, NoSandbox):
        raise refuse(404, _NO_FILE) from None
    except browse.Changing:
        raise refuse(503, "The file changes all the time. Try again.") from None


@asynccontextmanager
async def file_answer(
    request: Request, machine: Machine, place: browse.FilePlace, headers: Headers
) -> AsyncIterator[Response]:
    """The file, or the part of it that the request wants."""
    seen: list[http_ranges.Version] = []

    def choose(version: http_ranges.Version) -> http_ranges.Part:
        seen.append(version)
        return http_ranges.wanted(request.headers, version, ranged=request.method == "GET")

    base = headers(place.path.rpartition("/")[2])
    try:
        async with browse.opened(machine, place, choose) as (reader, part):
            yield _sent(request, reader, part, base | _version_headers(seen[-1]))
    except http_ranges.NotModified:
        yield Response(status_code=304, headers=_version_headers(seen[-1]) | _without_type(base))
    except http_ranges.Changed:
        detail = "The file is of another version than the request names. Read it again without that condition."
        raise HttpRefusal(Problem(412, detail, _version_headers(seen[-1]))) from None
    except http_ranges.Unsatisfiable:
        problem = Problem(416, "The range lies outside the file.", {"Content-Range": f"bytes */{seen[-1].size}"})
        raise HttpRefusal(problem) from None


def _listing(path: str, entries: list[FolderEntry], *, complete: bool) -> FolderListing:
    return FolderListing(path=readable(path), entries=entries, complete=complete)


def _version_headers(version: http_ranges.Version) -> dict[str, str]:
    return {"ETag": version.etag, "Last-Modified": version.last_modified}


def _without_type(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in ("Content-Type", "Content-Disposition")}


def _sent(request: Request, reader: FileReader, part: http_ranges.Part, headers: dict[str, str]) -> Response:
    headers = headers | {"Content-Length": str(part.length)}
    if part.partial:
        headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{reader.stat.size}"
    status = 206 if part.partial else 200
    return (
        Response(None, status, headers) if request.method == "HEAD" else FileResponse(request, reader, status, headers)
    )
