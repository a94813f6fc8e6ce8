"""Bytes both ways: the caller in the sandbox, and the socket that was dialled for it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Protocol

from cubicle.egress.meter import Meter
from cubicle.machine.stream import Stream

CHUNK = 512 * 1024
MIN_CHUNK = 16 * 1024
_MAX_IN_FLIGHT = 16 * 1024 * 1024
"""Bytes of one chat that were read from servers and wait for its callers to take them."""
_LINGER = 2.0
_LINGER_READS = 64


class Pipe(Protocol):
    """What can be read from and written to."""

    async def read(self, most: int = CHUNK) -> bytes:
        """Some bytes; b"" when there are no more."""

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of it, waiting for room."""

    async def write_eof(self) -> None:
        """Nothing more comes from this side."""


def chunk_for(connections: int) -> int:
    """How much one of so many connections reads at once, so that all of them together hold a fixed amount."""
    return max(MIN_CHUNK, min(CHUNK, _MAX_IN_FLIGHT // max(1, connections)))


class Inside:
    """The caller in the sandbox."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._first = b""

    def put_back(self, data: bytes) -> None:
        """Bytes that were read, and are to be read again."""
        self._first = data + self._first

    async def read(self, most: int = CHUNK) -> bytes:
        if self._first:
            chunk, self._first = self._first[:most], self._first[most:]
            return chunk
        return await self._stream.read(most)

    async def exactly(self, count: int) -> bytes:
        """So many bytes; EOFError if they do not come."""
        got = b""
        while len(got) < count:
            chunk = await self.read(count - len(got))
            if not chunk:
                raise EOFError
            got += chunk
        return got

    async def write(self, data: bytes | memoryview) -> None:
        await self._stream.write(data)

    async def write_eof(self) -> None:
        self._stream.write_eof()

    async def linger(self) -> None:
        """End so that the caller gets the last word even if it is still speaking: a reset would swallow it."""
        self._stream.write_eof()
        try:
            async with asyncio.timeout(_LINGER):
                for _ in range(_LINGER_READS):
                    if not await self._stream.read(CHUNK):
                        return
        except TimeoutError:
            return


class Outside:
    """A connected socket, every byte of which is counted."""

    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        self._sock = sock
        self._meter = meter
        self._loop = asyncio.get_running_loop()

    async def read(self, most: int = CHUNK) -> bytes:
        chunk = await self._loop.sock_recv(self._sock, min(most, chunk_for(self._meter.connections)))
        self._meter.received(len(chunk))
        return chunk

    async def write(self, data: bytes | memoryview) -> None:
        self._meter.sent(len(data))
        await self._loop.sock_sendall(self._sock, data)

    async def write_eof(self) -> None:
        # The other side may have been quicker, and gone.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
