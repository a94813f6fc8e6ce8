"""A WebSocket client over a byte stream into a sandbox. The server at the other end is not trusted.

ConnectionOver     the other end closed, or broke the rules; says with which code
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Self

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from cubicle.fairness.fair_queue import MAX_TURN_SECONDS
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Rest, StreamConnection

_OPEN_LIMIT = 15.0
_CLOSE_LIMIT = 2.0
_SLICE = 512
_AT_A_TIME = 64
_quiet = logging.getLogger("cubicle.websocket.frames")
_quiet.setLevel(logging.WARNING)

Message = str | bytes
Deliver = Callable[[bytes, bool], bool]
"""Takes a message's bytes, and whether they are text; False when it can take no more for now."""


class ConnectionOver(SandboxError):
    """The WebSocket into the sandbox is closed."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason or f"The connection into the sandbox was closed (code {code}).")
        self.code = code
        self.reason = reason


class WebSocketClient:
    """Messages both ways, whole and bounded; sending waits for room, and pings are answered while reading."""

    def __init__(self, stream: StreamConnection, protocol: ClientProtocol) -> None:
        self._stream = stream
        self._protocol = protocol
        self._ready: deque[tuple[bytes, bool]] = deque()
        self._unsent: list[bytes] = []
        self._part: bytes | memoryview | bytearray = b""
        self._received = 0
        self._text = False
        self._writing = asyncio.Lock()
        self.heard = 0
        """How many frames came so far, answers to pings among them."""

    @classmethod
    async def open(cls, machine: Machine, port: int, path: str, *, most: int, subprotocols: Sequence[str] = ()) -> Self:
        """Dial and shake hands. MachineError `refused` when nobody listens or it is no WebSocket server."""
        stream = await machine.dial(port, straight=True)
        try:
            async with asyncio.timeout(_OPEN_LIMIT):
                uri = WebSocketURI(False, "127.0.0.1", port, path, "", None, None)
                wanted = [Subprotocol(name) for name in subprotocols] or None
                client = cls(stream, ClientProtocol(uri, subprotocols=wanted, max_size=most, logger=_quiet))
                await client._shake_hands()
                return client
        except TimeoutError:
            stream.close()
            raise MachineError(ErrorCode.REFUSED, f"Port {port} of the sandbox does not answer.") from None
        except BaseException:
            stream.close()
            raise

    async def _shake_hands(self) -> None:
        self._protocol.send_request(self._protocol.connect())
        await self.flush()
        while self._protocol.state is State.CONNECTING:
            await self._feed()
            if self._protocol.handshake_exc is not None:
                break
        if self._protocol.handshake_exc is not None:
            raise MachineError(ErrorCode.REFUSED, "The server in the sandbox refused the WebSocket.")

    @property
    def subprotocol(self) -> str | None:
        return self._protocol.subprotocol

    async def receive(self) -> Message:
        """The next message. ConnectionOver at the end; SandboxError when the sandbox went away."""
        while not self._ready:
            self._check()
            await self._feed()
        data, text = self._ready.popleft()
        self._received += 1
        if self._received % _AT_A_TIME == 0:
            await asyncio.sleep(0)
        return data.decode() if text else data

    async def follow(self, deliver: Deliver, room: Rest) -> None:
        """Deliver each message in the very call that brings it, until `receive` would raise; then raise the same."""
        answered = True
        unheard = b""

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
                if not answered:
                    await self.flush()
                await room()
                self._check()
                if not unheard:
                    return
                await asyncio.sleep(0)
                hear(b"")

        if self._ready and not hear(b""):
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

    def post(self, message: bytes, text: bool) -> bool:
        """Send a message without waiting; False when it waits for room, until `flush` returns."""
        try:
            self._protocol.send_text(message) if text else self._protocol.send_binary(message)
        except InvalidState:
            raise ConnectionOver(None) from None
        return self._push()

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

    async def _feed(self) -> None:
        data = await self._stream.read()
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
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self.heard += 1
                self._take(event)

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text = frame.opcode is Opcode.TEXT
            self._part = frame.data
        elif frame.opcode is Opcode.CONT:
            if not isinstance(self._part, bytearray):
                self._part = bytearray(self._part)
            self._part += frame.data
        else:
            return
        if frame.fin:
            whole, self._part = bytes(self._part), b""
            self._ready.append((_sound(whole) if self._text else whole, self._text))

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
        if self._writing.locked() or not self._stream.put(b"".join(self._unsent)):
            return False
        self._unsent.clear()
        return True

    async def flush(self) -> None:
        """Write what the protocol has to say, in its order, whoever asks."""
        while not self._push():
            async with self._writing:
                waiting, self._unsent = b"".join(self._unsent), []
                if waiting:
                    await self._stream.write(waiting)


def _sound(text: bytes) -> bytes:
    """As it is if it is UTF-8; what is not becomes a mark in its place."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode()
    return text
