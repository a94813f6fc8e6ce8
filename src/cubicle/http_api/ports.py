"""The routes about a chat's ports: which are open, links to them, public shares, and a plain TCP forward."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocket

from cubicle.core import close_codes
from cubicle.core.chat import Chat
from cubicle.core.sandbox_ports import BROWSER, RESERVED, TERMINAL
from cubicle.fairness.fair_slots import FairSlots
from cubicle.guest.operations import ListeningPort
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import refuse
from cubicle.http_api.held_response import HeldResponse
from cubicle.http_api.models import PortOverview, PortRecord, PortShared
from cubicle.http_api.tcp_forward import TcpForward
from cubicle.http_api.urls import require_no_body
from cubicle.http_api.websocket_proxy import hang_up, refusing
from cubicle.machine.errors import SandboxError
from cubicle.ports.known_ports import KnownPorts
from cubicle.ports.links import PortLinks
from cubicle.ports.listening import OpenPort, PortReserved, PortRules, shown
from cubicle.ports.shares import NotAllowed, PortShare, PortShares
from cubicle.ports.watching import PortWatches
from cubicle.sandbox.fleet import Fleet, NoSandbox

_HEARTBEAT_SECONDS = 20.0
MAX_HOURS = 720.0
_NO_PORT = "A port is a number from 1 to 65535."


@dataclass(frozen=True, slots=True)
class _Seen:
    ports: tuple[OpenPort, ...]
    shares: tuple[PortShare, ...]
    browser: bool
    terminal: bool
    sandbox: str
    up: bool
    """Whether the sandbox is up. If not, its ports are those of before."""
    faults: tuple[str, ...]
    links_end: int
    """A link that is made now works until then: with another day, all are made anew."""


class PortRoutes:
    """Everything under /api/chats/<chat>/ports."""

    def __init__(self, fleet: Fleet, links: PortLinks, shares: PortShares, known: KnownPorts | None = None) -> None:
        self._fleet = fleet
        self._links = links
        self._shares = shares
        self._known = known or KnownPorts()
        self._rules = PortRules()
        self._watches = PortWatches(self._look)
        self._streams = FairSlots(total=4096, of_tenant=1024, of_chat=64)
        self._forwards = FairSlots(total=4096, of_tenant=1024, of_chat=128)

    async def listed(self, request: Request) -> Response:
        chat = chat_of(request)
        return JSONResponse(self._overview(chat, await self._look(chat), request.state.link))

    async def events(self, request: Request) -> Response:
        chat, link = chat_of(request), request.state.link
        return HeldResponse(lambda: self._held(chat, link))

    @asynccontextmanager
    async def _held(self, chat: Chat, link: str) -> AsyncIterator[Response]:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        async with self._streams.hold(chat, wait=False), aclosing(self._stream(chat, link)) as stream:
            yield StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _stream(self, chat: Chat, link: str) -> AsyncGenerator[str]:
        """The overview each time that it changes; a comment now and then, by which a client that is gone is found."""
        yield "retry: 2000\n\n"
        async with aclosing(self._watches.follow(chat, _HEARTBEAT_SECONDS)) as followed:
            async for seen in followed:
                if seen is None:
                    yield ": nothing new\n\n"
                else:
                    yield f"data: {json.dumps(self._overview(chat, seen, link))}\n\n"

    def end_streams(self) -> None:
        """Those who follow would hold up the end of the service."""
        self._watches.end()

    async def _look(self, chat: Chat) -> _Seen:
        """All that an overview is made of, which is cheap to compare: links are signed. To look wakes nothing."""
        listening = await self._listening(chat)
        if listening is not None:
            self._known.seen(chat, shown(listening))
        numbers = {one.port for one in listening or ()}
        return _Seen(
            ports=self._known.last(chat),
            shares=tuple(self._shares.of(chat)),
            browser=BROWSER in numbers,
            terminal=TERMINAL in numbers,
            sandbox=self._fleet.condition(chat),
            up=listening is not None,
            faults=self._known.faults(chat),
            links_end=self._links.expires,
        )

    async def _listening(self, chat: Chat) -> Sequence[ListeningPort] | None:
        """What listens now; None if the sandbox is not up."""
        with suppress(SandboxError):
            async with self._fleet.look(chat) as machine:
                return await machine.ports()
        return None

    def _overview(self, chat: Chat, seen: _Seen, link: str) -> PortOverview:
        ports = {one.port: one for one in seen.ports}
        public = {share.port: share for share in seen.shares}
        rows: list[PortRecord] = []
        for port in sorted(ports.keys() | public.keys()):
            row: PortRecord = {
                "port": port,
                "process": ports[port].process if port in ports else "",
                "address": ports[port].address if port in ports else "",
                "open": seen.up and port in ports,
                "url": self._links.origin(chat, port) + "/",
                "link": self._links.link(chat, port, link),
                "public": None,
            }
            if port in public:
                row["public"] = self._shared(chat, port, public[port].id, public[port].expires)
            rows.append(row)
        return {
            "ports": rows,
            "sharing": self._shares.allowed(chat.tenant),
            "note": self._links.note,
            "browser": seen.browser,
            "terminal": seen.terminal,
            "sandbox": seen.sandbox,
            "services": list(seen.faults),
        }

    def _shared(self, chat: Chat, port: int, share: str, expires: int) -> PortShared:
        return {"url": self._links.public_link(chat, port, share, expires), "expires": expires}

    async def share(self, request: Request) -> Response:
        """Make a port public until then."""
        require_no_body(request)
        chat, port = chat_of(request), _port(request)
        try:
            hours = float(request.query_params.get("hours", "24"))
        except ValueError:
            raise refuse(400, "hours has to be a number.") from None
        if not 0 < hours <= MAX_HOURS:
            raise refuse(400, f"hours has to be more than 0 and at most {MAX_HOURS:g}.")
        if not self._fleet.has(chat):
            raise NoSandbox("This chat has no sandbox.")
        if port in RESERVED:
            raise refuse(403, f"Port {port} is a part of the sandbox itself and is not opened.")
        try:
            share = await self._shares.add(chat, port, hours)
        except NotAllowed as error:
            raise refuse(403, str(error)) from None
        return JSONResponse(self._shared(chat, port, share.id, share.expires), 201)

    async def revoke(self, request: Request) -> Response:
        if not await self._shares.revoke(chat_of(request), _port(request)):
            raise refuse(404, "This port is not public.")
        return Response(status_code=204)

    async def forward(self, client: WebSocket) -> None:
        """The bytes of one TCP connection to the port, in binary messages."""
        chat, port = chat_of(client), int(client.path_params["port"])
        if not 0 < port < 65536:
            await hang_up(client, close_codes.POLICY, _NO_PORT)
            return
        async with (
            refusing(client),
            self._forwards.hold(chat, wait=False),
            self._fleet.lease(chat, create=False, wake=False) as machine,
        ):
            try:
                await self._rules.require_open(machine, port)
            except PortReserved as error:
                await hang_up(client, close_codes.NOT_ALLOWED, str(error))
                return
            stream = await machine.dial(port, straight=True)
            try:
                await client.accept()
                await TcpForward(client, stream).run()
            finally:
                stream.close()


def _port(request: Request) -> int:
    port = int(request.path_params["port"])
    if not 0 < port < 65536:
        raise refuse(400, _NO_PORT)
    return port
