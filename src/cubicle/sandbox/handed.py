"""A socket of the sandbox that the guest hands over, so that its bytes go past the guest.

The descriptor is as little trusted as the bytes. The guest may keep a copy of it, and what is set on one copy holds for
all: it can make the socket block, or linger. So nothing here relies on the socket's own settings: each read and write
says itself that it does not wait, and closing is done where waiting harms nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections import deque
from contextlib import suppress

from cubicle.sandbox import handover
from cubicle.sandbox.handover import NotHanded
from cubicle.sandbox.line import Gone, Line, MachineError
from cubicle.sandbox.stream import Rest, Taker

_CHUNK = 64 * 1024
"""Above this, the memory for a read costs more than the read of a small message itself."""
_MOST_UNREAD = 1024 * 1024
_MOST_IDLE_WAKES = 100
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


async def receive(link: socket.socket, port: int) -> socket.socket:
    """Ask the guest on a connection of its own for a socket that is connected to a port, and check what comes.

    NotHanded when it brings none, MachineError when the port refuses. Waits without limit: the caller sets one.
    """
    try:
        descriptor, _ = await handover.ask(link, "dial", port=port)
    except MachineError as no:
        if no.code == "refused":
            raise
        raise NotHanded(str(no)) from None
    return checked(descriptor, port)


def checked(descriptor: int, port: int) -> socket.socket:
    """The socket behind a descriptor, if it is a TCP connection to that port of a loopback. The descriptor is taken."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        handover.close(descriptor)
        raise NotHanded("this is no socket") from None
    try:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            raise NotHanded("this is no TCP socket")
        if sock.proto != socket.IPPROTO_TCP:
            raise NotHanded("this is no TCP socket")
        peer = sock.getpeername()
        if not ipaddress.ip_address(peer[0]).is_loopback or peer[1] != port:
            raise NotHanded("this leads elsewhere")
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException as error:
        handover.close(sock.detach())
        if isinstance(error, OSError | ValueError):
            raise NotHanded("this is not connected") from None
        raise
    return sock


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class HandedStream:
    """The same promises as `Stream`, over a socket that the guest may have kept a copy of."""

    def __init__(self, sock: socket.socket, line: Line) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._line = line
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._reading = False
        self._idle_wakes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Taker | None = None
        self._backlog: memoryview | None = None
        self._room: asyncio.Future[None] | None = None
        self._ends = False
        self._over: Exception | None = None
        """Why nothing more comes; EOFError for the usual end."""
        line.lost.add_done_callback(self._on_lost)
        self._go_on()

    async def read(self, most: int = _CHUNK) -> bytes:
        """Some bytes, at most so many; b"" when the other side has no more. A broken connection raises."""
        while not self._unread:
            if self._over is not None:
                await self._ended(self._over)
                return b""
            await self._woken()
        return self._pop(most)

    def _pop(self, most: int = _CHUNK) -> bytes:
        chunk = self._unread.popleft()
        if len(chunk) > most:
            self._unread.appendleft(chunk[most:])
            chunk = chunk[:most]
        self._size -= len(chunk)
        if self._size < _MOST_UNREAD:
            self._go_on()
        return chunk

    async def _woken(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def pump(self, taker: Taker, rest: Rest) -> None:
        """Hand over all that comes in the very call that brings it, until the end. A broken connection raises."""
        while self._unread:
            if not taker(self._pop()):
                await rest()
        self._taker = taker
        try:
            while self._over is None:
                self._go_on()
                await self._woken()
                if self._over is None:
                    await rest()
        finally:
            self._taker = None
        await self._ended(self._over)

    async def _ended(self, why: Exception) -> None:
        """Raise why it ended, unless the other side just had no more; that the whole sandbox is gone goes first."""
        if not isinstance(why, Gone):
            await self._line.check()
        if not isinstance(why, EOFError):
            raise why

    def put(self, data: bytes) -> bool:
        """Send it without waiting; False, and nothing of it is sent, when there is no room."""
        if self._backlog is not None:
            return False
        if self._sock.fileno() == -1:
            raise Gone("The connection into the sandbox is closed.")
        try:
            sent = self._sock.send(data, _AT_ONCE)
        except BlockingIOError:
            sent = 0
        except OSError:
            return True  # the other end is gone: reading says so, after all that it still sent
        if sent < len(data):
            self._backlog = memoryview(data)[sent:]
            self._loop.add_writer(self._sock, self._on_writable)
        return True

    async def write(self, data: bytes) -> None:
        """Send it, when all that was written before is on its way."""
        while not self.put(data):
            self._room = self._loop.create_future()
            try:
                await self._room
            finally:
                self._room = None

    def write_eof(self) -> None:
        self._ends = True
        if self._backlog is None:
            self._shut()

    def close(self) -> None:
        """Drop the connection, whatever is on its way."""
        self._end(Gone("The connection into the sandbox is closed."))

    def _go_on(self) -> None:
        if self._over is None and not self._reading:
            self._reading = True
            self._loop.add_reader(self._sock, self._on_readable)

    def _hold(self) -> None:
        self._reading = False
        self._loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        try:
            chunk = self._sock.recv(_CHUNK, _AT_ONCE)
        except BlockingIOError:
            self._idle_wakes += 1
            if self._idle_wakes > _MOST_IDLE_WAKES:  # an error queue, or a copy's reader, could keep the loop busy
                self._end(MachineError("io", "The connection into the sandbox is not usable."))
            return
        except OSError as error:
            self._end(MachineError("io", error.strerror or "The connection into the sandbox broke."))
            return
        self._idle_wakes = 0
        if not chunk:
            self._over = EOFError()
            self._hold()
        elif self._taker is not None:
            if self._taker(chunk):
                return
            self._hold()
        else:
            self._unread.append(chunk)
            self._size += len(chunk)
            if self._size >= _MOST_UNREAD:
                self._hold()
        _wake(self._waiter)

    def _on_writable(self) -> None:
        assert self._backlog is not None
        try:
            sent = self._sock.send(self._backlog, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._backlog)
        if sent < len(self._backlog):
            self._backlog = self._backlog[sent:]
            return
        self._backlog = None
        self._loop.remove_writer(self._sock)
        if self._ends:
            self._shut()
        _wake(self._room)

    def _shut(self) -> None:
        with suppress(OSError):  # it may be gone already
            self._sock.shutdown(socket.SHUT_WR)

    def _on_lost(self, lost: asyncio.Future[None]) -> None:
        self._end(Gone("The sandbox ended, or the connection to it was lost."))

    def _end(self, why: Exception) -> None:
        if self._sock.fileno() == -1:
            return
        self._over = self._over or why
        self._reading = False
        self._backlog = None
        self._line.lost.remove_done_callback(self._on_lost)
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        handover.close(self._sock.detach())
        _wake(self._waiter)
        _wake(self._room)
