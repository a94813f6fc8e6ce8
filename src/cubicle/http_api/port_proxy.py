"""The reverse proxy to the ports of sandboxes: what a browser asks of `{port}-{id}.{domain}` goes to that program.

Each request is judged by itself, and written anew for the program. Nothing is kept of a body: it is read from one side
when the other has taken what came before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from cubicle.core import close_codes
from cubicle.core.caller import Headers
from cubicle.core.problem import Problem
from cubicle.fairness.byte_budget import ByteBudget
from cubicle.fairness.fair_slots import Busy, FairSlots
from cubicle.guest.wire import ErrorCode
from cubicle.http_api import port_pages
from cubicle.http_api.errors import problem_of
from cubicle.http_api.fair_share import charge_to
from cubicle.http_api.forwarding import Forwarder
from cubicle.http_api.port_access import CLOSED, Admission, NotAdmitted, PortAccess, Visit
from cubicle.http_api.port_answers import PortAnswers
from cubicle.http_api.port_headers import (
    BadFraming,
    Lines,
    OwnRedirect,
    PortView,
    Surroundings,
    is_navigation,
    preflight,
    to_program,
    to_visitor,
    without_key,
)
from cubicle.http_api.port_hosts import NAME, PATH_AND_QUERY
from cubicle.http_api.request_bodies import pass_on
from cubicle.http_api.uvicorn_http import connection_of, cut_off, when_gone
from cubicle.http_api.uvicorn_ws import ClientLeft, ClientSocket
from cubicle.http_api.websocket_proxy import ProxyEnding, ProxyLimits, WebSocketProxy
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import WORTH
from cubicle.machine.websocket import HandshakeRefused, WebSocketClient
from cubicle.ports.listening import PortReserved, PortRules
from cubicle.ports.program import (
    BadRequest,
    NobodyListens,
    NotHttp,
    ProgramConnection,
    ProgramConnections,
    is_target,
)
from cubicle.ports.running_visits import RunningVisits, VisitOver
from cubicle.sandbox.fleet import Asleep, Fleet, NoSandbox

log = logging.getLogger(__name__)

_OVER = ProxyEnding(close_codes.POLICY, "The link has expired or was revoked.")
_RESTART = ProxyEnding(close_codes.RESTART, "The service ends.")
_BAD_TARGET = Problem(400, "The address holds characters that no address has.")
_BROKE_OFF = Problem(502, "The program hung up.")
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})


def _slots() -> FairSlots:
    return FairSlots(total=4096, of_tenant=1024, of_chat=512)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all requests have in common."""

    fleet: Fleet
    rules: PortRules = field(default_factory=PortRules)
    connections: ProgramConnections = field(default_factory=ProgramConnections)
    requests: FairSlots = field(default_factory=_slots)
    sockets: FairSlots = field(default_factory=_slots)
    guests: FairSlots = field(default_factory=lambda: FairSlots(total=1024, of_tenant=256, of_chat=128))
    """Requests and WebSockets of those who came by a public link, among the others."""
    guest_frames: ByteBudget = field(default_factory=lambda: ByteBudget(of_chat=16 * 1024**2, of_tenant=64 * 1024**2))
    frames: ByteBudget = field(default_factory=lambda: ByteBudget(of_chat=64 * 1024**2, of_tenant=256 * 1024**2))


class PortProxy:
    """ASGI application behind PortHosts."""

    def __init__(
        self,
        fleet: Fleet,
        access: PortAccess,
        visits: RunningVisits,
        around: Surroundings,
        forwarder: Forwarder | None = None,
    ) -> None:
        self._shared = _Shared(fleet)
        self._forwarder = forwarder
        self._visits = visits
        self._access = access
        self._around = around

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """No line of the log for each request: a page of a dev server has hundreds. What fails here is logged."""
        try:
            await self._serve(scope, receive, send)
        except (WebSocketDisconnect, ClientLeft):
            pass  # it left before it was answered
        except Exception:
            log.exception("a request to a port failed", extra={"port": scope[NAME].port})
            raise

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope["headers"])
        visit = Visit(
            scope[NAME],
            scope.get("method", "WS"),
            headers,
            scope[PATH_AND_QUERY].partition(b"?")[2],
            str((scope.get("client") or ("",))[0]),
        )
        view = self._view(scope, visit)
        opens = is_navigation(visit.method, scope["headers"])
        answers = PortAnswers(scope, receive, send, view, for_person=opens)
        try:
            admission = self._access.admit(visit, view)
        except NotAdmitted as refused:
            asked = preflight(visit.method, scope["headers"], view) if refused.problem is CLOSED else None
            await (answers.refuse(refused.problem) if asked is None else answers.allow(asked))
            return
        if not is_target(scope[PATH_AND_QUERY]):
            await answers.refuse(_BAD_TARGET)
            return
        if self._forwarder is not None and await self._forwarder(scope, receive, send, admission.chat):
            return
        try:
            self._access.enter(admission, visit)
        except NotAdmitted as refused:
            await answers.refuse(refused.problem)
            return
        if opens and admission.grant:
            await charge_to(scope, admission.chat.tenant, admission.chat.id)
            cookies = self._access.cookies(admission, visit, view)
            await answers.lead_on(without_key(scope[PATH_AND_QUERY]), cookies)
            return
        if admission.framed or admission.foreign:
            view = replace(view, framed=admission.framed, foreign=admission.foreign)
            answers = PortAnswers(scope, receive, send, view, for_person=opens)
        exchange = _Exchange(self._shared, scope, receive, send, admission, view, answers, opens=opens)
        try:
            # Nothing is waited for before: what is revoked from here on ends it.
            holds = self._access.holds(admission, visit.name)
            await self._visits.run(exchange.run(), admission.expires, admission.share, exchange.give_up, holds)
        except VisitOver:
            await exchange.end()

    def _view(self, scope: Scope, visit: Visit) -> PortView:
        host = (visit.headers.get("Host") or "").lower()
        if not host.startswith(visit.name.label):  # named by the target alone
            host = scope[NAME].label
        scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
        view = PortView(visit.name, host, scheme, visit.address, self._around)
        sibling = view.sibling_of(visit.headers.get("Referer") or "")
        return replace(view, sibling=sibling) if sibling is not None else view


class _Exchange:
    """One request of a visitor who was let in."""

    def __init__(
        self,
        shared: _Shared,
        scope: Scope,
        receive: Receive,
        send: Send,
        admission: Admission,
        view: PortView,
        answers: PortAnswers,
        *,
        opens: bool,
    ) -> None:
        self._shared = shared
        self._scope = scope
        self._receive = receive
        self._send = send
        self._chat = admission.chat
        self._is_guest = bool(admission.share)
        self._view = view
        self._answers = answers
        self._opens = opens
        """Whether a person opens a page by it."""
        self._target = without_key(scope[PATH_AND_QUERY])
        self._started = self._ended = self._gone = self._over = False
        self._sending: asyncio.Task[None] | None = None
        """What sends the body."""

    async def run(self) -> None:
        await charge_to(self._scope, self._chat.tenant, self._chat.id)
        await (self.socket() if self._scope["type"] == "websocket" else self.http())

    def give_up(self) -> None:
        """What let the visitor in does so no longer: it is about to be cancelled."""
        self._over = True

    def _headers(self) -> Lines:
        return to_program(self._scope["headers"], self._view)

    @asynccontextmanager
    async def _machine(self, slots: FairSlots) -> AsyncIterator[Machine]:
        """The chat's machine. A person who opens a page wakes it; what pages fetch by themselves does not."""
        async with (
            self._shared.guests.hold(self._chat, wait=False) if self._is_guest else nullcontext(),
            slots.hold(self._chat, wait=False),
            self._shared.fleet.lease(self._chat, create=False, wake=self._opens) as machine,
        ):
            await self._shared.rules.require_open(machine, self._view.name.port)
            yield machine

    async def end(self) -> None:
        """What let the visitor in does so no longer."""
        if self._scope["type"] == "http":
            await self._fail(CLOSED)
        else:
            await self._deny(CLOSED)

    # ---- HTTP

    async def http(self) -> None:
        asleep = self._opens and self._shared.fleet.condition(self._chat) in ("stopped", "failed")
        try:
            headers = self._headers()
            async with self._machine(self._shared.requests) as machine:
                await self._forward(machine, headers)
        except BadFraming as error:
            await self._answers.refuse(Problem(501, str(error)))
        except Asleep as error:
            await self._answers.refuse(_problem(error), port_pages.ASLEEP)
        except (BadRequest, PortReserved, NoSandbox, Busy, OwnRedirect) as error:
            await self._fail(_problem(error))
        except NotHttp as error:
            await self._fail(Problem(502, str(error)))
        except NobodyListens:
            await self._answers.wait(self._view.name.port, woken=asleep)
        except MachineError:
            await self._fail(_BROKE_OFF)
        except SandboxError as error:
            await self._fail(problem_of(error))

    async def _fail(self, problem: Problem) -> None:
        if self._gone:
            return
        if self._started:
            cut_off(self._scope)
        else:
            await self._answers.refuse(problem)

    async def _forward(self, machine: Machine, headers: Lines) -> None:
        port = self._view.name.port
        # What must not be sent twice goes on a connection that the program cannot have closed already.
        fresh = not self._is_repeatable(headers)
        connection = await self._shared.connections.take(machine, port, fresh=fresh)
        try:
            try:
                await self._exchange(machine, connection, headers)
            except SandboxError:
                # A kept connection may have been closed by the program while the request was on its way.
                if self._gone or self._started or not connection.used or connection.answered:
                    raise
                connection.close()
                connection = await self._shared.connections.take(machine, port, fresh=True)
                await self._exchange(machine, connection, headers)
        except BaseException:
            connection.close()
            raise
        self._shared.connections.give_back(machine, connection)

    def _is_repeatable(self, headers: Lines) -> bool:
        bodiless = not any(name in (b"Content-Length", b"Transfer-Encoding") for name, _ in headers)
        return self._scope["method"] in _REPEATABLE and bodiless

    async def _exchange(self, machine: Machine, connection: ProgramConnection, headers: Lines) -> None:
        def leave() -> None:
            self._gone = True
            connection.close()

        await connection.send_head(self._scope["method"], self._target, headers)
        with when_gone(self._scope, leave):
            if any(name in (b"Content-Length", b"Transfer-Encoding") for name, _ in headers):
                length = int(dict(headers).get(b"Content-Length", b"0"))
                await self._exchange_with_body(machine, connection, length)
            else:
                await self._respond(machine, connection)

    async def _exchange_with_body(self, machine: Machine, connection: ProgramConnection, length: int) -> None:
        """The answer may come before the program has read all of the body."""
        failed: Exception | None = None
        threads = self._shared.connections.threads(machine)
        async with asyncio.TaskGroup() as group:
            sending = self._sending = group.create_task(self._send_body(connection, length, threads))
            try:
                await self._respond(machine, connection)
            except (SandboxError, OwnRedirect) as error:
                failed = error
            finally:
                sending.cancel()
        if failed is not None:
            raise failed

    async def _send_body(self, connection: ProgramConnection, length: int, threads: FileThreads) -> None:
        """What the visitor who leaves has begun is ended in the program, too."""
        try:
            await pass_on(self._scope, self._receive, length, connection, threads)
        except ClientDisconnect:
            if not self._ended:
                self._gone = True
                connection.close()
        except SandboxError:
            pass  # the program does not want all of it: its answer says why, or that it hung up

    async def _answer(self, message: Message) -> None:
        """Behind a whole answer the server goes on to read from the visitor: nothing else may read any more."""
        if self._sending is not None and message["type"] == "http.response.body" and not message.get("more_body"):
            self._sending.cancel()
            await asyncio.wait([self._sending])
        await self._send(message)

    async def _respond(self, machine: Machine, connection: ProgramConnection) -> None:
        answered = await connection.head()
        status = answered.status if answered.status < 600 else 502
        lines = to_visitor(answered.headers, self._view, status)
        head = {"type": "http.response.start", "status": status, "headers": lines}
        self._started = True
        length = dict(lines).get(b"content-length", b"")
        if self._scope["method"] != "HEAD" and length.isdigit() and int(length) >= WORTH:
            client, threads = connection_of(Request(self._scope)), self._shared.connections.threads(machine)
            usable = client is not None and not client.has_pipelined
            if client is not None and usable and (splice := connection.splice(int(length), threads)) is not None:
                self._ended = True
                try:
                    await client.send_file(self._answer, head, splice)
                finally:
                    splice.close()
                return
        await self._answer(head)
        async for chunk in connection.body():
            await self._answer({"type": "http.response.body", "body": chunk, "more_body": True})
        self._ended = True  # from now on the server calls the visitor gone
        await self._answer({"type": "http.response.body", "body": b"", "more_body": False})

    # ---- WebSocket

    @property
    def _frames(self) -> ByteBudget:
        return self._shared.guest_frames if self._is_guest else self._shared.frames

    async def socket(self) -> None:
        client = WebSocket(self._scope, self._receive, self._send)
        ClientSocket.of(client).stream(self._frames.open(self._chat))
        try:
            headers = [(name.decode(), value.decode("latin-1")) for name, value in self._headers()]
            async with self._machine(self._shared.sockets) as machine:
                await self._relay(client, machine, headers)
        except HandshakeRefused as error:
            status = error.status if 400 <= error.status < 600 else 502
            await self._deny(Problem(status, "The program in the sandbox refused the WebSocket."))
        except (BadFraming, PortReserved, NoSandbox, Asleep, Busy) as error:
            await self._deny(_problem(error))
        except MachineError as error:
            if error.code is not ErrorCode.REFUSED:
                await self._deny(_BROKE_OFF)
                return
            await self._deny(Problem(503, f"Nothing listens on port {self._view.name.port} of the sandbox."))
        except SandboxError as error:
            await self._deny(problem_of(error))

    async def _relay(self, client: WebSocket, machine: Machine, headers: list[tuple[str, str]]) -> None:
        with self._frames.account(self._chat) as account:
            backend = await WebSocketClient.open(
                machine,
                self._view.name.port,
                self._target.decode("ascii", "replace"),
                most=account,
                subprotocols=self._scope.get("subprotocols") or (),
                headers=headers,
            )
            try:
                answered = to_visitor([(b"set-cookie", value) for value in backend.cookies], self._view, 101)
                await client.accept(backend.subprotocol, [line for line in answered if line[0] == b"set-cookie"])
                self._started = True
                limits = ProxyLimits(
                    most=None,
                    silence=0,
                    without_code=close_codes.NORMAL,
                    cancelled=lambda: _OVER if self._over else _RESTART,
                )
                await WebSocketProxy(client, backend, machine, limits).run()
            finally:
                backend.abort()

    async def _deny(self, problem: Problem) -> None:
        if not self._started:
            await self._answers.refuse(problem)


def _problem(error: Exception) -> Problem:
    match error:
        case PortReserved() | BadFraming():
            return Problem(403 if isinstance(error, PortReserved) else 501, str(error))
        case OwnRedirect():
            return Problem(502, str(error))
        case BadRequest():
            return Problem(400, str(error))
        case NoSandbox():
            return Problem(404, "No chat has a port of this name.")
        case Asleep():
            return Problem(503, f"{error} It wakes when somebody opens a page of it.", {"Retry-After": "5"})
        case _:
            return problem_of(error)
