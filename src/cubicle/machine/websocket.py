"""A WebSocket client over a byte stream into a sandbox. The server at the other end is not trusted.

ConnectionOver     the other end closed, or broke the rules; says with which code
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Self

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from cubicle.core import close_codes
from cubicle.fairness.byte_budget import MAX_FRAME, OVER_BUDGET, ByteAccount
from cubicle.fairness.fair_queue import MAX_TURN_SECONDS
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Rest, StreamConnection

_OPEN_LIMIT = 15.0
_CLOSE_LIMIT = 2.0
_SLICE = 512
_AT_A_TIME = 64
_MAX_PUT = 64 * 1024
"""More than this is written in parts, so that what the stream keeps is little."""
_END_OF_HEAD = b"\r\n\r\n"
_MAX_HANDSHAKE = 64 * 1024
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_quiet = logging.getLogger("cubicle.websocket.frames")
_quiet.setLevel(logging.WARNING)

Message = str | bytes
Deliver = Callable[[bytes, bool, bool], bool]
"""Takes a message's bytes, whether they are text, and whether that is all of it; False when it can take no more."""


class ConnectionOver(SandboxError):
    """The WebSocket into the sandbox is closed."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason or f"The connection into the sandbox was closed (code {code}).")
        self.code = code
        self.reason = reason


class HandshakeRefused(MachineError):
    """The server in the sandbox answered the handshake with another status than 101, or not as a WebSocket server
    does: then the status is 502."""

    def __init__(self, status: int = 502) -> None:
        super().__init__(ErrorCode.REFUSED, "The server in the sandbox refused the WebSocket.")
        self.status = status


class WebSocketClient:
    """Messages both ways, whole and bounded, or in fragments as they come; sending waits for room, and pings are
    answered while reading."""

    def __init__(self, stream: StreamConnection, protocol: ClientProtocol, account: ByteAccount | None = None) -> None:
        self._stream = stream
        self._protocol = protocol
        self._account = account
        self._ready: deque[tuple[bytes, bool, bool]] = deque()
        self._status_line = self._handshake = b""
        """How its answer begins, and the last few bytes that came of it."""
        self._handshake_size = 0
        self._unheard = b""
        """What came right behind the handshake."""
        self._unsent: list[bytes] = []
        self._in_flush = 0
        """Bytes of which a flush has not written all."""
        self._part: bytes | memoryview | bytearray = b""
        self._received = 0
        self._text = False
        self._writing = asyncio.Lock()
        self.cookies: list[bytes] = []
        """What the server's answer to the handshake sets."""
        self.heard = 0
        """How many frames came so far, answers to pings among them."""

    @classmethod
    async def open(
        cls,
        machine: Machine,
        port: int,
        path: str,
        *,
        most: int | ByteAccount,
        subprotocols: Sequence[str] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> Self:
        """Dial and shake hands. MachineError `refused` when nobody listens or it is no WebSocket server.

        A message is received up to `most` bytes. With an account in its place messages of any size come by the frame,
        to `follow` alone, and what is held of them is booked there.
        `headers` are sent besides those of the handshake; a Host among them takes the place of 127.0.0.1.
        """
        stream = await machine.dial(port, straight=True)
        return await cls.over(stream, port, path, most=most, subprotocols=subprotocols, headers=headers)

    @classmethod
    async def over(
        cls,
        stream: StreamConnection,
        port: int,
        path: str,
        *,
        most: int | ByteAccount,
        subprotocols: Sequence[str] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> Self:
        """Shake hands over a connection, which is closed if that fails."""
        try:
            async with asyncio.timeout(_OPEN_LIMIT):
                uri = WebSocketURI(False, "127.0.0.1", port, path, "", None, None)
                wanted = [Subprotocol(name) for name in subprotocols] or None
                account = most if isinstance(most, ByteAccount) else None
                size: int | tuple[int | None, int | None] = most if isinstance(most, int) else (None, MAX_FRAME)
                protocol = ClientProtocol(uri, subprotocols=wanted, max_size=size, logger=_quiet)
                client = cls(stream, protocol, account)
                await client._shake_hands(headers)
                return client
        except TimeoutError:
            stream.close()
            raise MachineError(ErrorCode.REFUSED, f"Port {port} of the sandbox does not answer.") from None
        except BaseException:
            stream.close()
            raise

    async def _shake_hands(self, headers: Sequence[tuple[str, str]]) -> None:
        request = self._protocol.connect()
        for name, value in headers:
            if name.lower() == "host":
                del request.headers["Host"]
            request.headers[name] = value
        self._protocol.send_request(request)
        await self.flush()
        while self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None:
            await self._hear_handshake()
        if self._protocol.handshake_exc is not None:
            raise HandshakeRefused
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self.cookies = [value.encode() for value in event.headers.get_all("Set-Cookie") if value.isascii()]

    @property
    def subprotocol(self) -> str | None:
        return self._protocol.subprotocol

    @property
    def has_closed(self) -> bool:
        """Whether the server said that it leaves: `follow` and `receive` end, and say how, behind what came before."""
        return self._protocol.close_rcvd is not None

    async def receive(self) -> Message:
        """The next message. ConnectionOver at the end; SandboxError when the sandbox went away."""
        while not self._ready:
            self._check()
            await self._feed()
        data, text, _ = self._ready.popleft()
        self._received += 1
        if self._received % _AT_A_TIME == 0:
            await asyncio.sleep(0)
        return data.decode() if text else data

    async def follow(self, deliver: Deliver, room: Rest) -> None:
        """Deliver each message in the very call that brings it, until `receive` would raise; then raise the same."""
        answered = True
        unheard, self._unheard = self._unheard, b""

        def hear(data: bytes) -> bool:
            """For a millisecond; a packet may hold a hundred thousand frames."""
            nonlocal answered, unheard
            ends, going, start, unheard = thread_time() + MAX_TURN_SECONDS, True, 0, unheard + data
            while True:
                while self._ready:
                    going = deliver(*self._ready.popleft())
                if start >= len(unheard) or not going or thread_time() > ends:
                    break
                self._hear(unheard[start : start + _SLICE])
                start += _SLICE
            unheard = unheard[start:]
            answered = self._answer()
            return going and answered and not unheard and self._protocol.state is State.OPEN

        async def rest() -> None:
            while True:
                self._check()
                if not answered:
                    await self.flush()
                await room()
                self._check()
                if not unheard:
                    return
                await asyncio.sleep(0)
                hear(b"")

        if (self._ready or unheard) and not hear(b""):
            await rest()
        await self._stream.pump(hear, rest)
        self._protocol.receive_eof()
        self._check()

    def _check(self) -> None:
        if self._protocol.state is not State.OPEN:
            # Not the end of the byte stream: a server that never hangs up would hold the caller.
            close = self._protocol.close_rcvd or self._protocol.close_sent
            raise ConnectionOver(close.code if close else None, close.reason if close else "")

    async def send(self, message: Message) -> None:
        text = isinstance(message, str)
        if not self.post(message.encode() if isinstance(message, str) else message, text):
            await self.flush()

    def post(self, message: bytes, text: bool, last: bool = True) -> bool:
        """Send a message without waiting; False when it waits for room, until `flush` returns.

        Unless it is the `last` of it, the next one goes on with the same message.
        """
        try:
            if self._protocol.expect_continuation_frame:
                self._protocol.send_continuation(message, last)
            else:
                self._protocol.send_text(message, last) if text else self._protocol.send_binary(message, last)
        except InvalidState:
            raise ConnectionOver(None) from None
        pushed = self._push()
        if not self._book():
            raise ConnectionOver(close_codes.TRY_LATER, OVER_BUDGET)
        return pushed

    def ping(self) -> None:
        """Ask for a sign of life, without waiting: where there is no room to ask, none will come either."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            self._push()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye, without waiting for an answer, and hang up."""
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(code, reason)
            async with asyncio.timeout(_CLOSE_LIMIT):
                await self.flush()
        except (TimeoutError, SandboxError):
            pass
        finally:
            self._stream.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._stream.close()

    async def _hear_handshake(self) -> None:
        """Hear its own part of what came: a server may send a hundred thousand frames behind it."""
        data = self._unheard or await self._stream.read()
        before = len(self._handshake)
        seen = self._handshake + data[:_SLICE]
        end = seen.find(_END_OF_HEAD)
        taken = end + len(_END_OF_HEAD) - before if end >= 0 else _SLICE
        self._handshake = seen[: before + taken][1 - len(_END_OF_HEAD) :]
        self._unheard = data[taken:]
        self._check_handshake(data[:taken], is_whole=end >= 0)
        self._protocol.receive_data(data[:taken]) if data else self._protocol.receive_eof()
        if self._unheard:
            await asyncio.sleep(0)

    def _check_handshake(self, data: bytes, *, is_whole: bool) -> None:
        """Refuse by the head alone: the body behind it would be held until it is whole."""
        self._status_line = (self._status_line + data)[:16]
        self._handshake_size += len(data)
        status = _STATUS.match(self._status_line)
        if is_whole and status is not None and status[1] != b"101":
            raise HandshakeRefused(int(status[1]))
        if self._handshake_size > _MAX_HANDSHAKE:
            raise HandshakeRefused

    async def _feed(self) -> None:
        """Hear what came."""
        data, self._unheard = self._unheard or await self._stream.read(), b""
        for start in range(0, len(data), _SLICE):
            self._hear(data[start : start + _SLICE])
            if start + _SLICE < len(data):
                await asyncio.sleep(0)
        if not data:
            self._protocol.receive_eof()
        if not self._answer():
            await self.flush()

    def _hear(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._book()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self.heard += 1
                self._take(event)

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in _DATA:
            return
        if frame.opcode is not Opcode.CONT:
            self._text = frame.opcode is Opcode.TEXT
        if self._account is not None:
            self._ready.append((bytes(frame.data), self._text, frame.fin))
            frame.data = b""  # the parser keeps the last frame until the next one comes
            return
        if frame.opcode is not Opcode.CONT:
            self._part = frame.data
        else:
            if not isinstance(self._part, bytearray):
                self._part = bytearray(self._part)
            self._part += frame.data
        if frame.fin:
            whole, self._part = bytes(self._part), b""
            self._ready.append((_sound(whole) if self._text else whole, self._text, True))

    def _answer(self) -> bool:
        """Send what hearing brought about, say a pong; False when it waits for room. Messages may go on waiting."""
        said = self._protocol.data_to_send()
        self._unsent += said
        return not said or self._push()

    def _push(self) -> bool:
        """Write what the protocol has to say, if there is room for all of it and nothing waits before it."""
        self._unsent += self._protocol.data_to_send()
        if not self._unsent:
            return True
        size = sum(map(len, self._unsent))
        if self._writing.locked() or size > _MAX_PUT or not self._stream.put(b"".join(self._unsent)):
            return False
        self._unsent.clear()
        return True

    async def flush(self) -> None:
        """Write what the protocol has to say, in its order, whoever asks."""
        while not self._push():
            async with self._writing:
                waiting, self._unsent = b"".join(self._unsent), []
                start, self._in_flush = 0, len(waiting)
                try:
                    while start < len(waiting):
                        await self._stream.write(waiting[start : start + _MAX_PUT])
                        start += _MAX_PUT
                finally:  # of who is cancelled the rest goes with what is said next
                    self._in_flush = 0
                    self._unsent[:0] = [waiting[start:]] if start < len(waiting) else []
                    self._book()

    def _book(self) -> bool:
        """Note what is held: of a frame that is not whole, and of what the program does not read. False, and the
        connection fails, when that is more than there is for the chat."""
        if self._account is None:
            return True
        unsent = sum(map(len, self._unsent)) + self._in_flush
        if self._account.hold(len(self._protocol.reader.buffer) + unsent):
            return True
        if self._protocol.state is State.OPEN:
            self._protocol.fail(close_codes.TRY_LATER, OVER_BUDGET)
        return False


def _sound(text: bytes) -> bytes:
    """As it is if it is UTF-8; what is not becomes a mark in its place."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode()
    return text
