"""uvicorn's HTTP connections, held to the limits of the service, and its server.

A large body of known length is taken from the socket itself once uvicorn has read the head of the request: uvicorn
copies a body four times and wakes the loop for every 64 KB of it, which costs more than to hash it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import Context
from types import FrameType
from typing import Any, cast

import httptools
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cubicle.chat.key_attempts import network_of
from cubicle.core.problem import MEDIA_TYPE, Problem
from cubicle.core.request_limits import (
    HEADERS_TOO_LARGE,
    MAX_HEADERS_SIZE,
    MAX_PIPELINED,
    TOO_MANY_PIPELINED,
    ChunkLimits,
    HeaderLimits,
)
from cubicle.fairness.fair_queue import STRANGERS, FairQueue, LoopShare
from cubicle.fairness.slices import feed_slices
from cubicle.http_api.acceptor import Acceptor
from cubicle.http_api.body_parser import parser_within
from cubicle.machine.passed_file import PassedFile
from cubicle.machine.socket_splice import SocketSplice, send_unpaced
from cubicle.machine.zero_copy import TIMEOUT, BrokeOff, ZeroCopy

_SCOPE = "cubicle.connection"
TARGET = "cubicle.target"
"""Where, in the ASGI scope, the target of the request is as the client wrote it."""
_HEAD_SECONDS = 60.0
"""For the head of a request, from its first byte, and for that one on a new connection."""
_KEEPALIVE_SECONDS = 60
_LINGER_SECONDS = 2.0
"""How long a refused client may go on sending: cut off at once, it would not see why."""
_SLICE = 4096
Drain = Callable[[Callable[[], bool]], Awaitable[None]]
"""Waits until what runs is done, or the function that it is given says that it is enough."""
_QUEUE = "fair_queue"
"""Where, in an application's state, the queue is in which its requests are worked on."""


class _Refused(Exception):
    """The request goes no further; the parser ends."""


class HttpConnection(HttpToolsProtocol):
    """uvicorn's, which lends its socket to the application, and holds the limits of a request's headers.

    Java's clients offer HTTP/2 with every request. Whoever does not take an offer has to go on as if there were none,
    but the parser takes the request for complete and its body for the other protocol. So a new one gets the head once
    more, without the offer.

    What came is looked at in the fair queue, for a millisecond at a time: a packet may hold a thousand requests, and a
    thousand clients may send one each. Until a request has shown whose it is, it is charged to its address.
    """

    _fair_queue: FairQueue | None = None
    _parsing = False
    _fed = _again = b""
    _due: asyncio.TimerHandle | None = None
    _refusal: Problem | None = None
    on_gone: Callable[[], None] | None = None
    """Called when the client goes away."""
    _tenant: str | None = None
    _is_shared = False
    """Whether requests of more than one tenant came on it."""
    _unproductive = 0
    """Bytes since the last that completed the headers or belonged to a body."""

    def __init__(self, config: uvicorn.Config, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self._fair_queue = getattr(getattr(config.app, "state", None), _QUEUE, None)
        self._unparsed = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._share = self._stranger()
        own = transport.get_extra_info("socket")  # the kernel gives up who takes nothing, however it is sent
        if own.family != socket.AF_UNIX:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(TIMEOUT * 1000))
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # and who went away while nothing is sent
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
            if self.client and self.client[0] in ("127.0.0.1", "::1"):
                send_unpaced(own)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)
        self._unparsed.clear()
        self.pipeline.clear()  # each of them holds this connection
        if self.on_gone is not None:
            self.on_gone()
        self._let_go()

    def charge_to(self, share: LoopShare) -> None:
        """From now on what comes on this connection is worked on as a part of this share."""
        self._share = share

    def _stranger(self) -> LoopShare:
        return LoopShare(STRANGERS, network_of(self.client[0]) if self.client else "")

    def _forget_tenant(self) -> None:
        """A connection of a reverse proxy brings requests of several: the next one need not be the last one's."""
        if (tenant := self._share.tenant) != STRANGERS:
            self._is_shared = self._is_shared or self._tenant not in (None, tenant)
            self._tenant = tenant
        if self._is_shared:
            self._share = self._stranger()

    def data_received(self, data: bytes) -> None:
        if self._fair_queue is None:
            self._parse(data)
            return
        self._unparsed += data
        self._parse_soon()
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()  # whoever sends more than his share is held back by TCP, not kept here

    def _parse_soon(self) -> None:
        if self._fair_queue is not None and self._unparsed and not self._parsing:
            self._parsing = True
            self._fair_queue.run(self._share, self._parse_some)

    def _parse_some(self) -> None:
        """Look at what came, for as long as a turn may take; then at the rest."""
        self._parsing = False
        start = feed_slices(self._unparsed, self._parse, self._is_ours, _SLICE)
        del self._unparsed[: start if self._is_ours() else len(self._unparsed)]
        if self._unparsed:
            self._parse_soon()
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _is_ours(self) -> bool:
        """Whether the connection is open, and speaks HTTP still."""
        return not self.transport.is_closing() and self.transport.get_protocol() is self

    def _parse(self, data: bytes) -> None:
        while data and self._refusal is None:
            self._fed, self._again = data, b""
            self._unproductive += len(data)
            super().data_received(data)
            data = self._again
        self._fed = b""
        if self._unproductive > MAX_HEADERS_SIZE and self._refusal is None:
            self._refuse(HEADERS_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or Problem(400, "This is not a valid HTTP/1.1 request."))

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        self._head_came()
        self._let_go()
        self.parser = None  # type: ignore[assignment]  # it holds this object's methods

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()
        self._limits = HeaderLimits()
        self._chunks = ChunkLimits()
        cast(dict[str, object], self.scope)[_SCOPE] = self

    def on_url(self, url: bytes) -> None:
        self._check(self._limits.add_url(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also of the trailers behind a body."""
        self._check(self._limits.add_header(name, value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_came()
        self._unproductive = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            self._check(TOO_MANY_PIPELINED)
        cast(dict[str, object], self.scope)[TARGET] = self.url
        if not self._has_mere_offer():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unproductive = 0
        self._check(self._chunks.add(len(body)))
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._forget_tenant()
        if self._refusal is None:
            Context().run(super().on_response_complete)  # the next request is no part of this one: it has its own turn
        elif not self.transport.is_closing():
            self._end_with(self._refusal)

    def on_message_complete(self) -> None:
        if not self._has_mere_offer():
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        offer = sys.exception()
        if isinstance(offer, httptools.HttpParserUpgrade) and self._has_mere_offer():
            lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
            lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = parser_within(self)
            self._again = b"\r\n".join([*lines, b"", self._fed[offer.args[0] :]])

    def _check(self, problem: Problem | None) -> None:
        if problem is not None:
            self._refusal = problem
            raise _Refused

    def _refuse(self, problem: Problem) -> None:
        """Answer with the problem, take nothing more, and end. The answer of a request before it is sent first."""
        self._refusal = problem
        self._head_came()
        self.pipeline.clear()
        if self.cycle is None or self.cycle.response_complete:
            self._end_with(problem)
            return
        self.cycle.more_body = False
        self.cycle.message_event.set()
        self._due = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _end_with(self, problem: Problem) -> None:
        self._head_came()
        body = problem.body()
        lines = [
            f"HTTP/1.1 {problem.status} {problem.title}",
            f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._due = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _let_go(self) -> None:
        """End the reference cycle with the scope: what the client sent is freed with the connection."""
        if self.scope is not None:
            cast(dict[str, object], self.scope).pop(_SCOPE, None)

    def _await_head(self) -> None:
        self._head_came()
        self._due = self.loop.call_later(_HEAD_SECONDS, self._on_late_head)

    def _head_came(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _on_late_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:  # the answer before it is still being sent
            self._await_head()

    def _should_upgrade(self) -> bool:
        """A WebSocket begins with a GET and nothing behind it; all else with such a header is an ordinary request."""
        if self.parser.get_method() != b"GET" or not super()._should_upgrade():
            return False
        headers = dict(self.headers)
        return b"transfer-encoding" not in headers and headers.get(b"content-length", b"0").strip() == b"0"

    def _has_mere_offer(self) -> bool:
        return self.parser.should_upgrade() and not self._should_upgrade() and self.parser.get_method() != b"CONNECT"

    def at_hand(self) -> bytes:
        """What came with the head of the request. Raises ClientDisconnect."""
        while self._unparsed:  # the rest is read from the socket itself
            data, self._unparsed = bytes(self._unparsed), bytearray()
            self._parse(data)
        if self.cycle.disconnected:
            raise ClientDisconnect
        taken = bytes(self.cycle.body)
        self.cycle.body.clear()
        return taken

    @contextmanager
    def lent(self, rest: int) -> Iterator[ZeroCopy]:
        """Nothing else reads from the client meanwhile; then it goes on behind what was taken."""
        pour = ZeroCopy(self.lend(), rest)
        try:
            yield pour
        finally:
            pour.close()
            self.take_back(pour.rest)

    def lend(self) -> int:
        """The socket's descriptor, to be copied at once. Nothing else reads from the client until `take_back`."""
        if self.transport.is_closing():  # the number may be another's already
            raise ClientDisconnect
        self.flow.pause_reading()
        return cast(int, self.transport.get_extra_info("socket").fileno())

    def look_for_end(self) -> None:
        """Read on: whoever has sent much is not read from, and would not be seen to leave."""
        self.flow.resume_reading()

    def take_back(self, rest: int) -> None:
        """Go on behind what was taken of the body: so much is still to come."""
        if self.parser is None:  # the client is gone
            return
        self.parser = parser_within(self, rest)
        if not rest:
            self.on_message_complete()

    @property
    def has_pipelined(self) -> bool:
        """Whether more requests wait behind the one that is being answered."""
        return bool(self.pipeline)

    def cut_off(self) -> None:
        """End the connection in the middle of an answer, so that the client sees that it is not whole."""
        self.cycle.disconnected = True
        self.transport.abort()

    async def send_file(self, send: Send, head: Message, file: PassedFile | SocketSplice) -> None:
        """The head of the answer as uvicorn sends it, then the file by the kernel alone."""
        cycle, transport = self.cycle, self.transport
        transport.set_write_buffer_limits(high=0)
        try:
            await send(head)
            await self.flow.drain()
        finally:
            transport.set_write_buffer_limits()
        try:
            if transport.is_closing():
                raise BrokeOff
            cycle.expected_content_length -= await file.into(transport.get_extra_info("socket").fileno())
        except BrokeOff:
            cycle.disconnected = True
            transport.abort()
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Server(uvicorn.Server):
    """uvicorn's, which accepts connections in turn of their addresses."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_end: Callable[[], None] = lambda: None,
        drain: Drain | None = None,
        members: tuple[socket.socket, uvicorn.Config] | None = None,
    ) -> None:
        """`members`: where other members of the service bring requests, and how these are answered."""
        super().__init__(config)
        self._members = members
        self._on_end = on_end
        self._drain = drain
        self._signals = 0
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        queue = getattr(getattr(self.config.app, "state", None), _QUEUE, None) or FairQueue()
        self._acceptors = [Acceptor(each, lambda: self._connection(self.config), queue) for each in sockets or []]
        if self._members is not None:
            sock, config = self._members
            config.load()
            self._acceptors.append(Acceptor(sock, lambda: self._connection(config), queue))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._members is not None:
            for each in sockets or []:
                each.shutdown(socket.SHUT_RDWR)  # from now on the kernel gives new connections to the other members
        if self._drain is not None:
            await self._drain(lambda: self._signals > 1)
        self._on_end()
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end; a second one ends the time that running calls have."""
        self._signals += 1
        super().handle_exit(sig, frame)

    def _connection(self, config: uvicorn.Config) -> asyncio.Protocol:
        made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


async def serve_app(
    app: ASGIApp,
    listening: socket.socket,
    on_end: Callable[[], None],
    drain: Drain | None = None,
    members: tuple[socket.socket, ASGIApp] | None = None,
    **options: Any,
) -> None:
    """Serve until interrupted; `drain` still answers requests. Then `on_end` ends the streams that wait for news: they
    would hold up the end. `members`: the socket that other members use, and what answers them."""
    inner = None if members is None else (members[0], uvicorn.Config(members[1], **options, proxy_headers=False))
    await Server(uvicorn.Config(app, **options), on_end, drain, inner).serve(sockets=[listening])


def connection_under(scope: MutableMapping[str, Any]) -> HttpConnection | None:
    """The connection that a request came on, if it is one of ours."""
    connection = scope.get(_SCOPE)
    return connection if isinstance(connection, HttpConnection) else None


def connection_of(request: Request) -> HttpConnection | None:
    """The connection behind the request, if its socket carries the plain bytes."""
    connection = connection_under(request.scope)
    return connection if connection is not None and connection.scheme == "http" else None


@contextmanager
def when_gone(scope: MutableMapping[str, Any], callback: Callable[[], None]) -> Iterator[None]:
    """Call back if the client goes away in this block, or did before it. uvicorn tells only who reads the request's
    body, and of pipelined requests only the last."""
    connection = scope[_SCOPE]
    assert isinstance(connection, HttpConnection)
    connection.on_gone = callback
    if connection.transport.is_closing():
        callback()
    try:
        yield
    finally:
        if connection.on_gone is callback:  # else it is the next request's already
            connection.on_gone = None


def cut_off(scope: MutableMapping[str, Any]) -> None:
    """End the connection of a request whose answer broke off. Raises where the server is not ours."""
    connection = scope[_SCOPE]
    assert isinstance(connection, HttpConnection)
    connection.cut_off()
