"""GET /raw/<capability>/<path>, and POST /api/chats/<chat>/raw/<path>, which makes the capability for a page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from cubicle.chat.links import Links
from cubicle.core import problem
from cubicle.core.http_ranges import Part
from cubicle.core.paths import encoded, readable
from cubicle.core.signing import Grant, Reach
from cubicle.files import browse
from cubicle.http_api import content_headers
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import HttpRefusal, refuse
from cubicle.http_api.fair_share import charge_to
from cubicle.http_api.files import NO_CODE, absent_is_404, file_answer
from cubicle.http_api.held_response import HeldResponse
from cubicle.http_api.models import RawUrl
from cubicle.http_api.page_guard import guarded
from cubicle.http_api.urls import file_path, seen_base, way_to_root
from cubicle.http_api.waking import Reading
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Fleet


class RawRoutes:
    """A page reads its own folder, and what lies below it; all of the chat when the person allows it."""

    def __init__(self, fleet: Fleet, links: Links) -> None:
        self._links = links
        self._reading = Reading(fleet)

    def pictures(self, request: Request) -> str:
        """The way from the root of the service to the pictures of the request's chat, for the viewers; none for who
        came by a link to one file."""
        if not request.state.identity.scope.is_whole:
            return ""
        return f"raw/{self._links.capability(Grant(chat_of(request), Reach.PICTURES), request.state.link)}/"

    async def grant(self, request: Request) -> Response:
        """A capability for a page: `scripts=1` runs its scripts, `all=1` lets it read all files of the chat."""
        chat, path = chat_of(request), file_path(request)
        reach = Reach.SCRIPTS if _is_set(request, "scripts") else Reach.PAGE
        async with absent_is_404(), self._reading.machine(request, chat) as machine:
            path = await browse.true_path(machine, path)
        folder = "" if _is_set(request, "all") else path.rpartition("/")[0]
        capability = self._links.capability(Grant(chat, reach, folder), request.state.link)
        url = f"raw/{capability}/{quote(encoded(path))}"
        return JSONResponse(RawUrl(url=url, folder=readable(folder)), headers={"Cache-Control": "no-store"})

    async def get(self, request: Request) -> Response:
        """The file: known by the address alone, no cookie is read."""
        path = file_path(request)
        grant = self._links.opened_capability(request.path_params["capability"], path)
        if grant is None:
            raise HttpRefusal(problem.UNAUTHORIZED)
        await charge_to(request.scope, grant.chat.tenant, grant.chat.id)
        request.state.chat = grant.chat
        if content_headers.is_for_own_page(request.headers, framed=True):
            raise refuse(403, NO_CODE)
        if request.headers.get("Sec-Fetch-Dest") == "document":
            # In a tab nothing would keep the page from going elsewhere, with its own address and what it has read.
            return RedirectResponse(_viewer(request, grant, path), 303, {"Cache-Control": "no-store"})
        return HeldResponse(lambda: self._answer(request, grant, path))

    @asynccontextmanager
    async def _answer(self, request: Request, grant: Grant, path: str) -> AsyncIterator[Response]:
        scripts = grant.reach is Reach.SCRIPTS
        bases = self._bases(request, grant.folder)
        async with absent_is_404(), self._reading.machine(request, grant.chat) as machine:
            place = await _find(machine, grant, path)
            if scripts and content_headers.runs_scripts(place.path):
                async with _page(request, machine, place, bases) as response:
                    yield response
                return
            answer = file_answer(
                request, machine, place, lambda name: content_headers.raw_headers(name, bases, scripts=False)
            )
            async with answer as response:
                yield response

    def _bases(self, request: Request, folder: str) -> str:
        """The folder as sources of a Content-Security-Policy, by all addresses under which it can be seen."""
        capability = request.path_params["capability"]
        below = f"{quote(encoded(folder))}/" if folder else ""
        seen = {self._links.base_url, seen_base(request)} - {""}
        return " ".join(sorted(f"{base}/raw/{capability}/{below}" for base in seen))


async def _find(machine: Machine, grant: Grant, path: str) -> browse.FilePlace:
    if grant.folder:
        place = await browse.find_below(machine, grant.folder, path)
    else:
        place = await browse.find(machine, path)
    if place.stat.kind != "file" or (grant.reach is Reach.PICTURES and not content_headers.is_picture(place.path)):
        raise browse.NoSuchFile
    return place


@asynccontextmanager
async def _page(request: Request, machine: Machine, place: browse.FilePlace, bases: str) -> AsyncIterator[Response]:
    """The whole page behind the guard: it is of another length than the file, and no part of it stands alone."""
    headers = content_headers.raw_headers(place.path, bases, scripts=True) | {"Cache-Control": "private, no-store"}
    del headers["Accept-Ranges"]
    async with browse.opened(machine, place, lambda version: Part(0, version.size, False)) as (reader, _):
        yield StreamingResponse(guarded(reader), headers=headers)


def _viewer(request: Request, grant: Grant, path: str) -> str:
    """The way from an address under /raw to the page that shows the file."""
    return f"{way_to_root(request)}preview/{quote(grant.chat.id, safe='')}/{quote(encoded(path))}"


def _is_set(request: Request, name: str) -> bool:
    return request.query_params.get(name, "") in ("1", "true")
