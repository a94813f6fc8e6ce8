"""GET /api/chats/<chat>/search: names and contents, as lines of JSON that come while the search goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cubicle.core.chat import Chat
from cubicle.core.http_ranges import Version
from cubicle.core.text import one_line
from cubicle.fairness.fair_slots import FairSlots
from cubicle.files import search
from cubicle.files.search_output import FoundLine, FoundName
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.file_models import FoundFile, FoundText, SearchEnd
from cubicle.http_api.held_response import HeldResponse, unmade
from cubicle.http_api.waking import Reading
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Fleet, NoSandbox

MEDIA_TYPE = "application/x-ndjson"
_WHERE = {"": ("names", "contents"), "names": ("names",), "contents": ("contents",)}


class SearchRoutes:
    """A client that goes away ends its search: the programs in the sandbox are killed."""

    def __init__(self, fleet: Fleet) -> None:
        self._reading = Reading(fleet)
        self._slots = FairSlots(total=16, of_tenant=8, of_chat=3)

    async def get(self, request: Request) -> Response:
        chat = chat_of(request)
        where = _WHERE.get(request.query_params.get("in", ""))
        if where is None:
            raise refuse(400, "in is names or contents.")
        try:
            query = search.checked(request.query_params.get("q", ""))
        except search.BadQuery as error:
            raise refuse(400, str(error)) from None
        return HeldResponse(lambda: self._answer(request, chat, query, where))

    @asynccontextmanager
    async def _answer(
        self, request: Request, chat: Chat, query: str, where: tuple[str, ...]
    ) -> AsyncIterator[Response]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
        if request.method == "HEAD":
            yield unmade(headers, MEDIA_TYPE)
            return
        async with self._slots.hold(chat):
            try:
                async with (
                    self._reading.machine(request, chat) as machine,
                    aclosing(_lines(machine, query, where)) as out,
                ):
                    yield StreamingResponse(out, headers=headers, media_type=MEDIA_TYPE)
            except NoSandbox:
                raise refuse(404, "This chat has no files yet.") from None


async def _lines(machine: Machine, query: str, where: tuple[str, ...]) -> AsyncGenerator[str]:
    complete = True
    try:
        for kind in where:
            found = search.names(machine, query) if kind == "names" else search.lines(machine, query)
            async with aclosing(found):
                async for one in found:
                    if isinstance(one, search.Unfinished):
                        complete = False
                    else:
                        yield _line(one)
    except SandboxError:  # it was stopped meanwhile
        complete = False
    end: SearchEnd = {"type": "end", "complete": complete}
    yield json.dumps(end) + "\n"


def _line(found: FoundName | FoundLine) -> str:
    if isinstance(found, FoundLine):
        text: FoundText = {
            "type": "line", "root": found.root, "path": found.path, "line": found.line,
            "text": one_line(found.text, len(found.text) + 1),
        }  # fmt: skip
        return json.dumps(text) + "\n"
    name: FoundFile = {
        "type": "name", "root": found.root, "path": found.path, "kind": found.kind, "size": found.size,
        "modified": iso(found.mtime),
    }  # fmt: skip
    return json.dumps(name) + "\n"


def iso(mtime: float) -> str:
    return Version(0, mtime, 0).modified.isoformat().replace("+00:00", "Z")
