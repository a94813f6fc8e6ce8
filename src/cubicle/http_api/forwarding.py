"""Passes requests on to the member of the service that owns their chat: HTTP, event streams, uploads, WebSockets.

Nothing is kept of a body: it is read from one side when the other has taken what came before. A request is sent once:
when its member ends before it has answered, the client is told to try again (503), for what it asked may be done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from cubicle.core import close_codes, hop
from cubicle.core.chat import Chat
from cubicle.core.hop import Hop
from cubicle.core.problem import Problem
from cubicle.fairness.byte_budget import ByteBudget
from cubicle.http_api.errors import response
from cubicle.http_api.port_hosts import answer, target_of
from cubicle.http_api.request_bodies import pass_on
from cubicle.http_api.routes import ELSEWHERE
from cubicle.http_api.uvicorn_http import connection_of, cut_off, when_gone
from cubicle.http_api.uvicorn_ws import ClientLeft, ClientSocket
from cubicle.http_api.websocket_proxy import ProxyEnding, ProxyLimits, WebSocketProxy
from cubicle.log import chat_fields
from cubicle.machine.dialled_socket import DialledSocket, Unattached
from cubicle.machine.errors import SandboxError
from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import WORTH
from cubicle.machine.websocket import HandshakeRefused, WebSocketClient
from cubicle.members.hop_keys import HopKeys
from cubicle.members.owners import Owners
from cubicle.members.records import NoRecords
from cubicle.ports.program import BadRequest, ProgramConnection
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

HOPPED = "cubicle.hop"
"""Where, in the ASGI scope, the hop is of a request that another member passed on."""
_CONNECT_SECONDS = 10.0
"""For a member that is about to listen."""
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_MAX_IDLE = 64
_IDLE_SECONDS = 30.0
_TRIES = 4
_OWN_LINES = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"expect", hop.HEADER})
_OF_HANDSHAKE = frozenset({b"upgrade", b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions"})
_NOT_MINE = Problem(421, "Another member of this service has the chat.")
_LOST = Problem(
    503,
    "The part of the service that worked on this request has ended, and what was asked may be done. Try again.",
    {"Retry-After": "1"},
)
_RESTART = ProxyEnding(close_codes.RESTART)


class MemberGone(Exception):
    """The member does not listen."""


class Forwarder:
    """Asked with every request that names a chat."""

    def __init__(self, owners: Owners, keys: HopKeys) -> None:
        self.owners = owners
        self._keys = keys
        self._idle: dict[str, deque[tuple[float, ProgramConnection]]] = {}
        self._in_use: dict[str, set[Callable[[], None]]] = {}
        """What closes each connection to a member that carries a request."""
        self._threads = FileThreads()
        self._frames = ByteBudget(of_chat=64 * 1024**2, of_tenant=256 * 1024**2)
        self._unattached: Unattached | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, chat: Chat) -> bool:
        """Have the request answered by the owner of the chat; False if that is this member."""
        if self.owners.owns(chat.digest):
            return False
        try:
            for _ in range(_TRIES):
                holder = await self.owners.place(chat)
                if holder is None:
                    scope.pop(ELSEWHERE, None)
                    return False
                if HOPPED in scope:
                    await refuse(scope, receive, send, _NOT_MINE)
                    return True
                scope[ELSEWHERE] = True
                try:
                    await self._pass_on(scope, receive, send, chat, holder)
                except MemberGone:
                    self.owners.doubt(chat, holder)
                else:
                    return True
            why = "Nobody has this chat at present."
        except NoRecords as error:
            log.warning("nobody answers a request: %s", error, extra=chat_fields(chat))
            why = error.said
        await refuse(scope, receive, send, Problem(503, why, {"Retry-After": "1"}))
        return True

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, chat: Chat, holder: str) -> None:
        if scope["type"] == "websocket":
            await self._pass_socket(scope, receive, send, chat, holder)
            return
        while True:
            connection = self._kept(holder) or await self._dial(holder)
            exchange = _Exchange(self, scope, receive, send, connection, chat, holder)
            try:
                with self._using(holder, connection.close):
                    await exchange.run(self.lines(scope, holder))
            except BadRequest as error:
                connection.close()
                await refuse(scope, receive, send, Problem(400, str(error)))
            except SandboxError:
                connection.close()
                if exchange.give_up():
                    return
                if exchange.unsent and connection.used:
                    continue  # it was closed while nobody used it
                self.owners.doubt(chat, holder)
                await refuse(scope, receive, send, _LOST)
            except BaseException:
                connection.close()
                raise
            else:
                self._keep(holder, connection)
            return

    async def ask(self, holder: str, target: bytes, most: int) -> bytes:
        """What a member itself answers to a GET. Raises MemberGone, NoRecords, SandboxError."""
        connection = self._kept(holder) or await self._dial(holder)
        try:
            made = Hop(self.owners.name, holder, "http", None)
            value = hop.signed(self._keys.signing, made, "GET", target, time.time())
            await connection.send_head("GET", target, [(b"Host", b"member"), (hop.HEADER, value)])
            status, parts = (await connection.head()).status, bytearray()
            async for chunk in connection.body():
                parts += chunk
                if len(parts) > most:
                    raise SandboxError("The answer is too long.")
        except BaseException:
            connection.close()
            raise
        self._keep(holder, connection)
        if status != 200:
            raise SandboxError(f"The member answered with {status}.")
        return bytes(parts)

    # ---- connections

    async def _dial(self, holder: str) -> ProgramConnection:
        return ProgramConnection(await self._stream(holder), trusted=True)

    async def _stream(self, holder: str) -> DialledSocket:
        """Raises MemberGone, NoRecords."""
        ends = time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                sock = await self.owners.records.dial(holder)
                break
            except OSError as error:
                if time.monotonic() > ends or not await self.owners.records.is_alive(holder):
                    raise MemberGone(str(error)) from None
            await asyncio.sleep(_PAUSE_SECONDS)
        self._unattached = self._unattached or Unattached()
        return DialledSocket(sock, self._unattached)

    @contextmanager
    def _using(self, holder: str, close: Callable[[], None]) -> Iterator[None]:
        closers = self._in_use.setdefault(holder, set())
        closers.add(close)
        try:
            yield
        finally:
            closers.discard(close)
            if not closers and self._in_use.get(holder) is closers:
                del self._in_use[holder]

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Give up requests whose member has ended, within the block: one that is cut off hangs up on nobody."""
        task = start_task(self._watch(), name="requests at members")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._close_idle()
            for holder in list(self._in_use):
                try:
                    if not await self.owners.records.is_alive(holder):
                        self._give_up(holder)
                except NoRecords as error:
                    log.debug("a member cannot be looked at: %s", error)
                except Exception:
                    log.exception("a member cannot be looked at")

    def _give_up(self, holder: str) -> None:
        closers = list(self._in_use.get(holder, ()))
        if closers:
            log.warning("requests are given up: their member has ended", extra={"requests": len(closers)})
        for close in closers:
            close()

    def _kept(self, holder: str) -> ProgramConnection | None:
        kept = self._idle.get(holder)
        while kept:
            since, connection = kept.pop()
            if connection.is_quiet and time.monotonic() - since < _IDLE_SECONDS:
                return connection
            connection.close()
        return None

    def _keep(self, holder: str, connection: ProgramConnection) -> None:
        if not connection.renew():
            connection.close()
            return
        kept = self._idle.setdefault(holder, deque())
        kept.append((time.monotonic(), connection))
        if len(kept) > _MAX_IDLE:
            kept.popleft()[1].close()

    def _close_idle(self) -> None:
        """Also those to members that are gone, which nobody will ask for any more."""
        oldest = time.monotonic() - _IDLE_SECONDS
        for holder, kept in list(self._idle.items()):
            while kept and kept[0][0] < oldest:
                kept.popleft()[1].close()
            if not kept:
                del self._idle[holder]

    def close(self) -> None:
        for kept in self._idle.values():
            for _, connection in kept:
                connection.close()
        self._idle.clear()

    # ---- what is sent

    def lines(self, scope: Scope, holder: str) -> list[tuple[bytes, bytes]]:
        """The headers that the member gets."""
        method = scope.get("method", "WS")
        client = scope.get("client")
        made = Hop(self.owners.name, holder, scope["scheme"], (str(client[0]), int(client[1])) if client else None)
        value = hop.signed(self._keys.signing, made, method, target_of(scope), time.time())
        return [*((name, text) for name, text in scope["headers"] if name not in _OWN_LINES), (hop.HEADER, value)]

    @property
    def threads(self) -> FileThreads:
        return self._threads

    async def _pass_socket(self, scope: Scope, receive: Receive, send: Send, chat: Chat, holder: str) -> None:
        client = WebSocket(scope, receive, send)
        stream = await self._stream(holder)
        ClientSocket.of(client).stream(self._frames.open(chat))
        headers = [
            (name.decode(), value.decode("latin-1"))
            for name, value in self.lines(scope, holder)
            if name not in _OF_HANDSHAKE and name != b"sec-websocket-protocol"
        ]
        with self._frames.account(chat) as account, self._using(holder, stream.close):
            try:
                backend = await WebSocketClient.over(
                    stream,
                    80,
                    target_of(scope).decode("ascii", "replace"),
                    most=account,
                    subprotocols=scope.get("subprotocols") or (),
                    headers=headers,
                )
            except HandshakeRefused as error:
                status = error.status if 400 <= error.status < 600 else 502
                again = status == _NOT_MINE.status
                if again:
                    self.owners.doubt(chat, holder)
                await refuse(scope, receive, send, _LOST if again else Problem(status, "The WebSocket was refused."))
                return
            except SandboxError:
                self.owners.doubt(chat, holder)
                await refuse(scope, receive, send, _LOST)
                return
            try:
                await client.accept(backend.subprotocol, [(b"set-cookie", value) for value in backend.cookies])
                limits = ProxyLimits(most=None, silence=0, without_code=close_codes.NORMAL, cancelled=lambda: _RESTART)
                with self._using(holder, backend.abort):
                    await WebSocketProxy(client, backend, None, limits).run()
            except (WebSocketDisconnect, ClientLeft):
                pass
            finally:
                backend.abort()


class _Exchange:
    """One HTTP request, sent to a member."""

    def __init__(
        self,
        forwarder: Forwarder,
        scope: Scope,
        receive: Receive,
        send: Send,
        connection: ProgramConnection,
        chat: Chat,
        holder: str,
    ) -> None:
        self._forwarder = forwarder
        self._scope, self._receive, self._send = scope, receive, send
        self._connection = connection
        self._chat, self._holder = chat, holder
        self._started = self._ended = self._gone = False
        self._has_body = False
        self._sending: asyncio.Task[None] | None = None
        """What sends the body."""

    def give_up(self) -> bool:
        """The member hung up. Whether the client had a part of the answer, which is cut off there, or is gone."""
        if self._started and not self._gone:
            cut_off(self._scope)
        return self._started or self._gone

    @property
    def unsent(self) -> bool:
        """Whether it can be sent once more: a request that changes something may have been done."""
        return not self._has_body and self._scope["method"] in ("GET", "HEAD", "OPTIONS")

    async def run(self, lines: list[tuple[bytes, bytes]]) -> None:
        self._has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in lines)

        def leave() -> None:
            self._gone = True
            self._connection.close()

        await self._connection.send_head(self._scope["method"], target_of(self._scope), lines)
        with when_gone(self._scope, leave):
            if self._has_body:
                await self._with_body(int(dict(lines).get(b"content-length", b"0")))
            else:
                await self._respond()

    async def _with_body(self, length: int) -> None:
        """The answer may come before all of the body was read."""
        failed: SandboxError | None = None
        async with asyncio.TaskGroup() as group:
            sending = self._sending = group.create_task(self._send_body(length))
            try:
                await self._respond()
            except SandboxError as error:
                failed = error
            finally:
                sending.cancel()
        if failed is not None:
            raise failed

    async def _send_body(self, length: int) -> None:
        """What the client who leaves has begun is ended at the member, too."""
        try:
            await pass_on(self._scope, self._receive, length, self._connection, self._forwarder.threads)
        except ClientDisconnect:
            if not self._ended:
                self._gone = True
                self._connection.close()
        except SandboxError:
            pass  # the member does not want all of it: its answer says why

    async def _answer(self, message: Message) -> None:
        """Behind a whole answer the server goes on to read from the client: nothing else may read any more."""
        if self._sending is not None and message["type"] == "http.response.body" and not message.get("more_body"):
            self._sending.cancel()
            await asyncio.wait([self._sending])
        await self._send(message)

    async def _respond(self) -> None:
        answered = await self._connection.head()
        if answered.status == _NOT_MINE.status:
            self._forwarder.owners.doubt(self._chat, self._holder)
        lines = [(name.lower(), value) for name, value in answered.headers]
        lines = [line for line in lines if line[0] not in (*_OWN_LINES, b"transfer-encoding", b"date")]
        head = {"type": "http.response.start", "status": answered.status, "headers": lines}
        if answered.status == _NOT_MINE.status:
            head["status"] = 503
            lines.append((b"retry-after", b"1"))
        self._started = True
        length = dict(lines).get(b"content-length", b"")
        if self._scope["method"] != "HEAD" and length.isdigit() and int(length) >= WORTH:
            client = connection_of(Request(self._scope))
            usable = client is not None and not client.has_pipelined
            splice = self._connection.splice(int(length), self._forwarder.threads) if usable else None
            if client is not None and splice is not None:
                self._ended = True
                try:
                    await client.send_file(self._answer, head, splice)
                finally:
                    splice.close()
                return
        await self._answer(head)
        async for chunk in self._connection.body():
            await self._answer({"type": "http.response.body", "body": chunk, "more_body": True})
        self._ended = True  # from now on the server calls the client gone
        await self._answer({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse(scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
    if scope["type"] == "http":
        await response(problem)(scope, receive, send)
    else:
        await answer(scope, receive, send, problem.status, [], problem.body())
