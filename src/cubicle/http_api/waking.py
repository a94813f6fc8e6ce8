"""Reading a chat's files is no use of its sandbox: one that sleeps is woken only when the reader says so (`wake=1`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from cubicle.core.chat import Chat
from cubicle.http_api.chats import chat_of
from cubicle.http_api.error_page import fills_a_tab
from cubicle.http_api.models import SandboxState
from cubicle.http_api.urls import same_with
from cubicle.http_api.visits import Visits
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Asleep, Fleet

AsleepPage = Callable[[Request, str, str], Response]
"""Makes the page (409) for a person: from the request, the reason, and the address that wakes and then shows it."""


def wants_wake(request: HTTPConnection) -> bool:
    return request.query_params.get("wake", "") in ("1", "true")


class Reading:
    """Finds the machine for whoever reads files."""

    def __init__(self, fleet: Fleet, asleep_page: AsleepPage | None = None) -> None:
        self._fleet = fleet
        self._asleep_page = asleep_page

    def machine(self, request: Request, chat: Chat) -> AbstractAsyncContextManager[Machine]:
        """The chat's machine if it is up, or is to be woken. NoSandbox, Asleep."""
        if wants_wake(request):
            return self._fleet.lease(chat, create=False)
        return self._fleet.look(chat, hold=True)

    async def for_a_person(self, request: Request, chat: Chat) -> Response | None:
        """What a browser's tab is shown first while the sandbox sleeps: a button; after it, the plain address again.

        Otherwise a tab that is loaded once more would wake the sandbox once more.
        """
        if self._asleep_page is None or not fills_a_tab(request):
            return None
        if wants_wake(request) and request.headers.get("Sec-Fetch-Dest") == "document":
            async with self._fleet.lease(chat, create=False):
                return RedirectResponse(_way(request, wake=False), 303, {"Cache-Control": "no-store"})
        if wants_wake(request) or not self._fleet.has(chat):
            return None
        try:
            async with self._fleet.look(chat):
                return None
        except Asleep as error:
            return self._asleep_page(request, str(error), _way(request, wake=True))


class StartRoutes:
    """POST /api/chats/<chat>/start: what the buttons of the pages call, when a person wants the sandbox up."""

    def __init__(self, fleet: Fleet, visits: Visits) -> None:
        self._fleet = fleet
        self._visits = visits

    async def start(self, request: Request) -> Response:
        """Make the sandbox, or wake it; answers once it is up."""
        chat = chat_of(request)
        async with self._visits.lease(request):
            return JSONResponse(SandboxState(sandbox=self._fleet.condition(chat)))


def _way(request: Request, *, wake: bool) -> str:
    """From this address to the same one that wakes, or does not."""
    kept = [part for part in request.url.query.split("&") if part and part.partition("=")[0] != "wake"]
    return same_with(request, "&".join([*kept, "wake=1"] if wake else kept))
