"""A byte stream to a port of a sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from cubicle.guest.operations import Accepted
from cubicle.machine.connection import Channel
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.items import Data, End, Eof, Event

Taker = Callable[[bytes], bool]
"""Takes what came; False when it can take no more for now."""
Rest = Callable[[], Awaitable[None]]
"""Returns when the taker can take more."""


class StreamConnection(Protocol):
    """What a dial gives: frames of the guest's, or a socket that it handed over."""

    async def read(self, most: int = 65536) -> bytes:
        """Some bytes, at most so many; b"" when the other side has no more. A broken connection raises."""

    async def pump(self, taker: Taker, rest: Rest) -> None:
        """Hand over all that comes as it comes, until the end. A broken connection raises."""

    def put(self, data: bytes) -> bool:
        """Send it without waiting; False, and nothing of it is sent, when it must wait for room."""

    async def write(self, data: bytes) -> None:
        """Send it; waits for room."""

    def write_eof(self) -> None:
        """Nothing more is sent."""

    def close(self) -> None:
        """Drop the connection, whatever is on its way."""


class Stream:
    """Bytes both ways; writing waits for room, reading gives b"" at the end."""

    def __init__(self, channel: Channel[Any, Any]) -> None:
        self._channel = channel
        self._rest = b""
        self._ended = False

    @property
    def origin(self) -> tuple[str, int] | None:
        """Where a caller of a listener with `origin` wanted to go, as the guest tells it."""
        request = self._channel.request
        return request.to if isinstance(request, Accepted) else None

    async def read(self, most: int = 65536) -> bytes:
        """Some bytes, at most so many; b"" when the other side has no more. A broken connection raises."""
        while not self._rest and not self._ended:
            try:
                item = await self._channel.get()
            except MachineError:
                self._ended = True
                raise
            except Gone:
                self._ended = True
                raise
            if isinstance(item, Data):
                self._rest = item.bytes
            elif isinstance(item, Eof | End):
                self._ended = True
            elif isinstance(item, Event):
                continue
        if len(self._rest) <= most:
            chunk, self._rest = self._rest, b""
            return chunk
        chunk, self._rest = self._rest[:most], self._rest[most:]
        return chunk

    async def pump(self, taker: Taker, rest: Rest) -> None:
        """Hand over all that comes as it comes, until the end. A broken connection raises."""
        while chunk := await self.read():
            if not taker(chunk):
                await rest()

    def put(self, data: bytes) -> bool:
        """Send it without waiting; False, and nothing of it is sent, when it must wait for room."""
        if self._channel.over:
            raise Gone("The connection into the sandbox is closed.")
        return self._channel.post(data)

    async def write(self, data: bytes | memoryview) -> None:
        if self._channel.over:
            raise Gone("The connection into the sandbox is closed.")
        await self._channel.send(data)

    def write_eof(self) -> None:
        self._channel.eof()

    def close(self) -> None:
        """Drop the connection, whatever is on its way."""
        self._channel.cancel()
