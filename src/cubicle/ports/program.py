"""HTTP/1.1 to the program on a port of a sandbox. The program is not trusted: llhttp reads it, within bounds.

NobodyListens  no program listens on the port
NotHttp      what answers on the port speaks no HTTP, or hung up before it answered
BadRequest   the request cannot be written down so that every reader understands the same
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from time import thread_time
from weakref import WeakKeyDictionary

import httptools

from cubicle.fairness.fair_queue import MAX_TURN_SECONDS
from cubicle.machine.dialled_socket import DialledSocket
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import SocketSplice
from cubicle.machine.stream import StreamConnection

_MAX_HEAD = 64 * 1024
_MAX_LINES = 256
_MAX_INFORMATIONAL = 16
_SLICE = 4096
"""What comes is parsed in slices, this one first: a packet may hold thousands of chunks of a byte."""
_MAX_SLICE = 16 * 1024
_FEW = 16
"""Pieces of a body in a slice up to which the next slice is larger."""
_MAX_IDLE = 64
"""Connections to all ports of one sandbox that are kept for the next request."""
_IDLE_SECONDS = 4.0
"""Node closes a quiet connection after five."""
_HEAD_SECONDS = 3600.0
"""For the head of an answer: programs compute for minutes before they say anything."""
_TARGET = re.compile(rb"[\x21-\x7e]+")
_BODY_LINES = (b"content-length", b"transfer-encoding")


class NobodyListens(MachineError):
    """No program took the connection."""


class NotHttp(SandboxError):
    """The program's answer is no HTTP, or it broke off before its head was whole."""


class BadRequest(ValueError):
    """A line of the request's head holds what ends a line."""


def is_target(target: bytes) -> bool:
    """Whether a request's path and query hold nothing but what every reader takes for a part of them."""
    return _TARGET.fullmatch(target) is not None


@dataclass(slots=True)
class Answer:
    """What came of an answer so far."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    """What came of it, and was not taken yet."""
    has_head: bool = False
    is_whole: bool = False
    keeps_alive: bool = False
    """Whether the program waits for another request."""
    informational: int = 0
    lines: int = 0
    has_begun: bool = False
    unproductive: int = 0
    """Bytes since the last that completed the head or belonged to the body: trailers and chunk extensions, too."""

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing else tells where its body ends."""
        return self.has_head and not any(name.lower() in _BODY_LINES for name, _ in self.headers)


class ProgramConnection:
    """One connection to a port, for one request after the other."""

    def __init__(self, stream: StreamConnection, port: int = 0, *, trusted: bool = False) -> None:
        """`trusted`: the other end reads what it is sent, and can be sent another request behind a body."""
        self.port = port
        self._trusted = trusted
        self._sent_body = True
        self.used = False
        """Whether it carried a request before: then the program may have hung up in the meantime."""
        self.closer: asyncio.TimerHandle | None = None
        self._stream = stream
        self._parser: httptools.HttpResponseParser | None = None
        self._answer = Answer()
        self._unparsed = memoryview(b"")
        self._asks_for_head = self._has_body = self._is_chunked = False
        self._surplus = False
        """Whether something came that is no part of an answer."""
        self._refusal = ""

    @property
    def answered(self) -> bool:
        """Whether anything of the answer came."""
        return self._answer.has_begun

    async def send_head(self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raises BadRequest."""
        names = [name.lower() for name, _ in headers]
        self._is_chunked = b"transfer-encoding" in names
        self._has_body = self._is_chunked or b"content-length" in names
        self._sent_body = not self._has_body
        self._asks_for_head = method == "HEAD"
        lines = [b"%s %s HTTP/1.1" % (method.encode(), target), *(b"%s: %s" % header for header in headers)]
        head = b"\r\n".join([*lines, b"", b""])
        ends = len(lines) + 1
        if not is_target(target) or (head.count(b"\r"), head.count(b"\n"), head.count(b"\0")) != (
            ends,
            ends,
            0,
        ):
            raise BadRequest("The request cannot be passed on.")
        await self._stream.write(head)

    async def send_body(self, chunk: bytes) -> None:
        await self._stream.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if self._is_chunked else chunk)

    @property
    def takes_splice(self) -> bool:
        """Whether the kernel can move a body to it."""
        return isinstance(self._stream, DialledSocket) and not self._is_chunked

    async def splice_body(self, splice: SocketSplice, patience: float) -> None:
        """A part of the body as the kernel moves it; the caller closes it. BrokeOff as the splice's."""
        assert isinstance(self._stream, DialledSocket)
        await self._stream.take(splice, patience)

    async def end_body(self) -> None:
        if self._is_chunked:
            await self._stream.write(b"0\r\n\r\n")
        self._sent_body = True

    async def head(self) -> Answer:
        """The answer as soon as its head is there; informational ones are passed over. Raises NotHttp."""
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                while not self._answer.has_head:
                    await self._receive()
                    self._parse(_SLICE)
        except TimeoutError:
            raise NotHttp("The program did not answer for an hour.") from None
        return self._answer

    async def body(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises NotHttp when it breaks off."""
        answer, size, ends = self._answer, _SLICE, thread_time() + MAX_TURN_SECONDS
        while True:
            if answer.body and (answer.is_whole or not self._unparsed):
                yield answer.body[0] if len(answer.body) == 1 else b"".join(answer.body)
                answer.body.clear()
                size, ends = _SLICE, thread_time() + MAX_TURN_SECONDS
            if answer.is_whole:
                return
            if self._unparsed and thread_time() > ends:
                await asyncio.sleep(0)
                ends = thread_time() + MAX_TURN_SECONDS
            await self._receive()
            before = len(answer.body)
            self._parse(size)
            size = min(size * 2, _MAX_SLICE) if len(answer.body) - before < _FEW else _SLICE

    def splice(self, length: int, threads: FileThreads) -> SocketSplice | None:
        """The body as the kernel moves it, once the head is there; None where it has to be read. Not for two uses."""
        if not isinstance(self._stream, DialledSocket):
            return None
        first = (b"".join(self._answer.body) + bytes(self._unparsed))[:length]
        return self._stream.splice(first, length - len(first), threads)

    # ---- reading

    async def _receive(self) -> None:
        """Have something to parse, or the answer's end."""
        if self._unparsed:
            return
        data = await self._stream.read()
        self._unparsed = memoryview(data)
        if data:
            return
        if not self._answer.has_head:
            raise NotHttp("The program hung up before it answered.")
        if not self._answer.ends_with_connection:
            raise NotHttp("The program hung up in the middle of its answer.")
        self._answer.is_whole = True

    def _parse(self, size: int) -> None:
        """The next slice of what came. Raises NotHttp."""
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
            self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)  # for what a script prints
        data, self._unparsed = self._unparsed[:size], self._unparsed[size:]
        if not data:
            return
        self._answer.has_begun = True
        self._answer.unproductive += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._surplus = True
            if not self._answer.is_whole:
                raise NotHttp(self._refusal or f"The program's answer is no HTTP: {error}.") from None
        if self._answer.unproductive > _MAX_HEAD:
            part = "rest" if self._answer.has_head else "head"
            raise NotHttp(f"The {part} of the program's answer has more than {_MAX_HEAD} bytes of headers.")

    def _refuse(self, why: str) -> None:
        self._refusal = why
        raise NotHttp(why)  # the parser ends, and says only that something was raised

    def on_message_begin(self) -> None:
        if self._answer.is_whole:
            self._refuse("The program sent more than one answer.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also of the trailers behind a body, which are not passed on."""
        answer = self._answer
        answer.lines += 1
        if answer.lines > _MAX_LINES:
            self._refuse(f"The program's answer has more than {_MAX_LINES} lines of headers.")
        if not answer.has_head:
            answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        answer, status = self._answer, self._parser.get_status_code()
        if status == 101:
            self._refuse("The program changed the protocol, and nobody asked for that.")
        if status < 200:
            answer.informational += 1
            answer.headers.clear()
            if answer.informational > _MAX_INFORMATIONAL:
                self._refuse("The program's answer does not come to its head.")
            return
        codings = [value.lower() for name, value in answer.headers if name.lower() == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            self._refuse("The program's answer has another transfer coding than chunked.")
        answer.status, answer.has_head, answer.unproductive = status, True, 0
        if self._asks_for_head:
            answer.is_whole, answer.keeps_alive = True, self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """An interim answer has none: what comes for one, say by a Content-Length, is refused before it is kept."""
        if self._answer.is_whole or not self._answer.has_head:
            self._refuse("The program sent a body where none belongs.")
        self._answer.unproductive = 0
        self._answer.body.append(data)

    def on_message_complete(self) -> None:
        if self._answer.has_head and not self._answer.is_whole:
            assert self._parser is not None
            self._answer.is_whole, self._answer.keeps_alive = True, self._parser.should_keep_alive()

    # ---- keeping

    def renew(self) -> bool:
        """Make ready for another request; False when it cannot carry one.

        Only after a request without a body: a program that did not read the body would take it for the next request.
        """
        answer = self._answer
        if (
            (self._has_body and not self._trusted)
            or not self._sent_body
            or self._surplus
            or self._unparsed
            or not self.is_quiet
        ):
            return False
        if not answer.is_whole or not answer.keeps_alive:
            return False
        if self._asks_for_head:
            self._parser = None  # it waits for a body
        self._answer = Answer()
        self.used = True
        return True

    @property
    def is_quiet(self) -> bool:
        """Whether it is open and nothing came that nobody asked for."""
        return isinstance(self._stream, DialledSocket) and self._stream.is_quiet

    def close(self) -> None:
        self._parser = None  # it holds this object's methods
        self._stream.close()


class ProgramConnections:
    """Dials ports, and keeps connections that can carry another request for a few seconds."""

    def __init__(self) -> None:
        self._threads: WeakKeyDictionary[Machine, FileThreads] = WeakKeyDictionary()
        self._idle: WeakKeyDictionary[Machine, deque[ProgramConnection]] = WeakKeyDictionary()

    async def take(self, machine: Machine, port: int, *, fresh: bool = False) -> ProgramConnection:
        """NobodyListens when nobody does."""
        while not fresh and (connection := self._kept(machine, port)) is not None:
            if connection.is_quiet:
                return connection
            connection.close()
        try:
            return ProgramConnection(await machine.dial(port, straight=True), port)
        except MachineError as error:
            raise NobodyListens(error.code, str(error)) from None

    def _kept(self, machine: Machine, port: int) -> ProgramConnection | None:
        """The one to this port that was kept last."""
        found = next((one for one in reversed(self._idle.get(machine, ())) if one.port == port), None)
        if found is not None:
            self._forget(machine, found)
        return found

    def _forget(self, machine: Machine, connection: ProgramConnection) -> None:
        if connection.closer is not None:
            connection.closer.cancel()
        idle = self._idle[machine]
        idle.remove(connection)
        if not idle:
            del self._idle[machine]

    def threads(self, machine: Machine) -> FileThreads:
        """In which the kernel moves large bodies: few for each sandbox."""
        return self._threads.setdefault(machine, FileThreads())

    def give_back(self, machine: Machine, connection: ProgramConnection) -> None:
        """Keep it for another request, in the place of the oldest if there are many, or close it."""
        if not connection.renew():
            connection.close()
            return
        idle = self._idle.setdefault(machine, deque())
        if len(idle) >= _MAX_IDLE:
            self._expire(machine, idle[0])
        idle.append(connection)
        connection.closer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._expire, machine, connection)

    def _expire(self, machine: Machine, connection: ProgramConnection) -> None:
        self._forget(machine, connection)
        connection.close()
