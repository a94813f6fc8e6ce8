"""The browser's routes: status, start, DevTools over HTTP with rewritten addresses, and both DevTools sockets."""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager, suppress

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from cubicle.browser import cdp_http, chromium
from cubicle.browser.live_views import LiveViews
from cubicle.core.chat import Chat
from cubicle.core.problem import NOT_STARTED, Problem
from cubicle.fairness.fair_slots import FairSlots
from cubicle.guest.wire import ErrorCode
from cubicle.http_api.chats import chat_of
from cubicle.http_api.credential import is_from_a_link
from cubicle.http_api.errors import HttpRefusal
from cubicle.http_api.held_input import HeldInput
from cubicle.http_api.models import ProgramStarted
from cubicle.http_api.routes import Use, row_of
from cubicle.http_api.urls import without_key
from cubicle.http_api.visits import Visits
from cubicle.http_api.websocket_proxy import ProxyLimits, WebSocketProxy, refusing
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Fleet

_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_NOT_BY_A_LINK = Problem(
    405, "This changes what the browser has open. Send PUT, or the key in the Authorization header.", {"Allow": "PUT"}
)

_NOT_STARTED = Problem(409, "The browser of this chat is not running.", type=NOT_STARTED)


class BrowserRoutes:
    """Everything under /browser/<chat> but the page and the live view."""

    def __init__(
        self,
        fleet: Fleet,
        public_base_url: str = "",
        limits: ProxyLimits | None = None,
        visits: Visits | None = None,
        screens: LiveViews | None = None,
    ) -> None:
        self._screens = screens or LiveViews()
        self._fleet = fleet
        self._visits = visits or Visits(fleet)
        self._public = public_base_url.rstrip("/")
        self._limits = limits or ProxyLimits(most=chromium.MAX_MESSAGE)
        self._browsers = chromium.Browsers()
        self._sockets = FairSlots(total=4096, of_tenant=1024, of_chat=64)

    async def status(self, request: Request) -> Response:
        chat = chat_of(request)
        pages = None
        with suppress(SandboxError):  # not up, or going down: then nothing runs there
            async with self._fleet.look(chat) as machine:
                pages = await chromium.pages(machine)
        state = self._fleet.condition(chat)
        return JSONResponse({"running": pages is not None, "pages": pages or [], "sandbox": state})

    async def start(self, request: Request) -> Response:
        async with self._visits.lease(request) as machine:
            looks = request.query_params.get("wake") == "0" and request.query_params.get("again") != "1"
            if looks and await chromium.pages(machine) is None:
                raise HttpRefusal(_NOT_STARTED)  # a page that only looks starts no browser
            started = await self._browsers.start(machine)
        return JSONResponse(ProgramStarted(running=True, started=started))

    async def json(self, request: Request) -> Response:
        """DevTools' own answers. The query of /json/new goes along as it came: it is the address to open."""
        row, page = row_of(request.scope), request.path_params.get("page", "none")
        if row.use is not Use.LOOKS and request.method != "PUT" and is_from_a_link(request):
            raise HttpRefusal(_NOT_BY_A_LINK)
        if not _ID.fullmatch(page):
            return Response("No such target", 404, media_type="text/plain")
        target = row.template.partition("{chat}")[2].replace("{page}", page)
        if target == "/json/new" and request.url.query:
            target += "?" + without_key(request.url.query)
        async with self._for_question(row.use, chat_of(request)) as machine:
            answer = await chromium.ask(machine, request.method, target)
        body = answer.body
        if target != "/json/protocol":
            body = cdp_http.rewritten(body, self._base(request), _key(request))
        is_json = answer.content_type.startswith("application/json")
        return Response(
            body,
            answer.status if 200 <= answer.status < 600 else 502,
            headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"},
            media_type="application/json" if is_json else "text/plain",
        )

    def _for_question(self, use: Use, chat: Chat) -> AbstractAsyncContextManager[Machine]:
        """Programs ask again and again what is open; to open, show or close a page is to use the browser."""
        if use is Use.LOOKS:
            return self._fleet.look(chat)
        return self._fleet.lease(chat, create=False, wake=False)

    async def page_socket(self, client: WebSocket) -> None:
        await self._relay(client, "page")

    async def browser_socket(self, client: WebSocket) -> None:
        await self._relay(client, "browser")

    async def own_socket(self, client: WebSocket) -> None:
        """The browser's endpoint under the bare address, for clients that are given a WebSocket address only."""
        await self._relay(client, None)

    async def _relay(self, client: WebSocket, kind: str | None) -> None:
        chat = chat_of(client)
        async with (
            refusing(client),
            self._sockets.hold(chat, wait=False),
            self._fleet.lease(chat, create=False, wake=False) as machine,
        ):
            if kind is None:
                path = await chromium.endpoint(machine)
            else:
                path = f"/devtools/{kind}/{client.path_params['page']}"
                if cdp_http.socket_path(path) is None:
                    raise MachineError(ErrorCode.NOT_FOUND, "There is no such page.")
            backend = await chromium.connect(machine, path)
            try:
                await client.accept()
                gate = HeldInput(self._screens.gate(chat))
                await WebSocketProxy(client, backend, machine, self._limits, gate=gate).run()
            finally:
                backend.abort()

    def _base(self, request: HTTPConnection) -> str:
        """The address of this chat's browser, as WebSocket clients reach it."""
        root = self._public or f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}"
        return f"{re.sub('^http', 'ws', root)}/browser/{request.path_params['chat']}"


def _key(request: HTTPConnection) -> str:
    """A signed link's key goes along into the addresses: whoever came by it has nothing else to show."""
    key = request.query_params.get("key", "")
    return f"?key={key}" if re.fullmatch(r"[A-Za-z0-9._~-]{1,512}", key) else ""
