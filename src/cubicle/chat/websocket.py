"""A WebSocket client over a byte stream into a sandbox. The server at the other end is not trusted.

ConnectionOver     the other end closed, or broke the rules; says with which code
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Self

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from cubicle.sandbox.driver import SandboxError
from cubicle.sandbox.machine import Machine, MachineError
from cubicle.sandbox.stream import Stream

_OPEN_LIMIT = 15.0
_CLOSE_LIMIT = 2.0
_quiet = logging.getLogger("cubicle.websocket.frames")
_quiet.setLevel(logging.WARNING)

Message = str | bytes


class ConnectionOver(SandboxError):
    """The WebSocket into the sandbox is closed."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason or f"The connection into the sandbox was closed (code {code}).")
        self.code = code
        self.reason = reason


class WebSocketClient:
    """Messages both ways, whole and bounded; sending waits for room, and pings are answered while reading."""

    def __init__(self, stream: Stream, protocol: ClientProtocol) -> None:
        self._stream = stream
        self._protocol = protocol
        self._ready: deque[Message] = deque()
        self._parts: list[bytes | memoryview | bytearray] = []
        self._text = False
        self._writing = asyncio.Lock()
        self.heard = 0
        """How many frames came so far, answers to pings among them."""

    @classmethod
    async def open(cls, machine: Machine, port: int, path: str, *, most: int, subprotocols: Sequence[str] = ()) -> Self:
        """Dial and shake hands. MachineError `refused` when nobody listens or it is no WebSocket server."""
        stream = await machine.dial(port)
        try:
            async with asyncio.timeout(_OPEN_LIMIT):
                uri = WebSocketURI(False, "127.0.0.1", port, path, "", None, None)
                wanted = [Subprotocol(name) for name in subprotocols] or None
                client = cls(stream, ClientProtocol(uri, subprotocols=wanted, max_size=most, logger=_quiet))
                await client._shake_hands()
                return client
        except TimeoutError:
            stream.close()
            raise MachineError("refused", f"Port {port} of the sandbox does not answer.") from None
        except BaseException:
            stream.close()
            raise

    async def _shake_hands(self) -> None:
        self._protocol.send_request(self._protocol.connect())
        await self._flush()
        while self._protocol.state is State.CONNECTING:
            await self._feed()
            if self._protocol.handshake_exc is not None:
                break
        if self._protocol.handshake_exc is not None:
            raise MachineError("refused", "The server in the sandbox refused the WebSocket.")

    @property
    def subprotocol(self) -> str | None:
        return self._protocol.subprotocol

    async def receive(self) -> Message:
        """The next message. ConnectionOver at the end; SandboxError when the sandbox went away."""
        while not self._ready:
            if self._protocol.state is not State.OPEN:
                # Not the end of the byte stream: a server that never hangs up would hold the caller.
                close = self._protocol.close_rcvd or self._protocol.close_sent
                raise ConnectionOver(close.code if close else None, close.reason if close else "")
            await self._feed()
        return self._ready.popleft()

    async def send(self, message: Message) -> None:
        try:
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
        except InvalidState:
            raise ConnectionOver(None) from None
        await self._flush()

    async def ping(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            await self._flush()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye, without waiting for an answer, and hang up."""
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(code, reason)
                async with asyncio.timeout(_CLOSE_LIMIT):
                    await self._flush()
        except (TimeoutError, SandboxError):
            pass
        finally:
            self._stream.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._stream.close()

    async def _feed(self) -> None:
        data = await self._stream.read()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                continue
            if isinstance(event, Frame):
                self.heard += 1
                self._take(event)
        await self._flush()

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text = frame.opcode is Opcode.TEXT
            self._parts = [frame.data]
        elif frame.opcode is Opcode.CONT:
            self._parts.append(frame.data)
        else:
            return
        if frame.fin:
            whole = bytes(self._parts[0]) if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._ready.append(whole.decode("utf-8", "replace") if self._text else whole)

    async def _flush(self) -> None:
        """Write what the protocol has to say, in its order, whoever asks."""
        pieces = self._protocol.data_to_send()
        if not any(pieces):
            return
        async with self._writing:
            await self._stream.write(b"".join(pieces))
