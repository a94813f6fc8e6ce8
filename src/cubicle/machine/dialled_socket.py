"""A connection to a port of the sandbox's loopback, made by the service itself in the sandbox's network namespace.

Its bytes go past the guest. The socket is the service's alone: one that the guest made and passed on could be held by
a copy, and a read that waits for the guest's lock on it would stop everybody.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import threading
from collections import deque
from contextlib import suppress

from cubicle.fairness.fair_queue import FairQueue, LoopShare, current
from cubicle.guest.wire import ErrorCode
from cubicle.machine import fd_passing
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import SocketSplice, send_unpaced
from cubicle.machine.stream import Rest, Taker

_CHUNK = 64 * 1024
"""Above this, the memory for a read costs more than the read of a small message itself."""
_MAX_UNREAD = _CHUNK
_MAX_IDLE_WAKES = 100
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_CLONE_NEWNET = 0x40000000
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_libc = ctypes.CDLL(None, use_errno=True)


async def connect_in(namespace: int, port: int) -> socket.socket | None:
    """A socket connected to a port of this network namespace's loopback; None where this process may not enter it.

    The descriptor is closed. MachineError `refused` when nobody listens. Waits without limit: the caller sets one.
    """
    entered = False
    try:
        for family, address in _LOOPBACKS:
            sock = await _socket_in(namespace, family)
            if sock is None:
                continue
            entered = True
            try:
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                send_unpaced(sock)
                return sock
            except OSError:
                sock.close()
            except BaseException:
                sock.close()
                raise
    finally:
        os.close(namespace)
    if not entered:
        return None
    raise MachineError(ErrorCode.REFUSED, f"Nobody listens on port {port} of the sandbox.")


async def _socket_in(namespace: int, family: socket.AddressFamily) -> socket.socket | None:
    """A socket of another network namespace: it stays in the one that the thread was in that made it."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[socket.socket | None] = loop.create_future()
    own = os.dup(namespace)  # the caller may be gone when the thread comes to it

    def give(sock: socket.socket | None) -> None:
        if not made.done():
            made.set_result(sock)
        elif sock is not None:
            sock.close()

    def make() -> None:
        sock = None
        try:
            if _libc.setns(own, _CLONE_NEWNET) == 0:
                with suppress(OSError):
                    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        finally:
            os.close(own)
            try:
                loop.call_soon_threadsafe(give, sock)
            except RuntimeError:  # the loop is closed: the service ends
                if sock is not None:
                    sock.close()

    threading.Thread(target=make, name="dial", daemon=True).start()
    return await made


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class Unattached:
    """In the place of a sandbox's connection, for a socket that leads to none."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def check(self) -> None:
        pass


class DialledSocket:
    """The same promises as `Stream`, over a socket of the service's own."""

    def __init__(self, sock: socket.socket, line: GuestLink | Unattached) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._line = line
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._reading = False
        self._idle_wakes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Taker | None = None
        self._charged: tuple[FairQueue, LoopShare] | None = None
        self._backlog: memoryview | None = None
        self._room: asyncio.Future[None] | None = None
        self._ends = self._lent = False
        self._over: Exception | None = None
        """Why nothing more comes; EOFError for the usual end."""
        line.lost.add_done_callback(self._on_lost)
        self._go_on()

    @property
    def is_quiet(self) -> bool:
        """Whether it is open, and nothing came that was not read."""
        return self._over is None and not self._unread

    def splice(self, first: bytes, rest: int, threads: FileThreads) -> SocketSplice:
        """`first` and the next `rest` bytes as the kernel moves them. Nothing else reads from here on."""
        if self._sock.fileno() == -1:
            raise Gone("The connection into the sandbox is closed.")
        self._hold()
        unread = b"".join(self._unread)
        self._unread.clear()
        self._lent = True
        return SocketSplice(self._sock.fileno(), first + unread[:rest], rest - len(unread[:rest]), threads)

    async def read(self, most: int = _CHUNK) -> bytes:
        """Some bytes, at most so many; b"" when the other side has no more. A broken connection raises.

        What comes from now on is read in the fair queue as a part of the caller's work.
        """
        self._charged = current.get()
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
        if self._size < _MAX_UNREAD:
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
        self._taker, self._charged = taker, current.get()
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

    async def take(self, splice: SocketSplice, patience: float) -> None:
        """Send what the kernel moves, when all that was written before is on its way. BrokeOff as the splice's."""
        await self.write(b"")
        await splice.into(self._sock.fileno(), patience)

    def write_eof(self) -> None:
        self._ends = True
        if self._backlog is None:
            self._shut()

    def close(self) -> None:
        """Drop the connection, whatever is on its way."""
        self._end(Gone("The connection into the sandbox is closed."))

    def _go_on(self) -> None:
        if self._over is None and not self._reading and not self._lent:
            self._reading = True
            self._loop.add_reader(self._sock, self._on_readable)

    def _hold(self) -> None:
        self._reading = False
        self._loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        if self._charged is None:
            self._receive()
            return
        queue, share = self._charged
        if queue.is_free:
            queue.step(share, self._receive)
        else:
            self._hold()
            queue.when_turn(share, self._on_turn)

    def _on_turn(self) -> None:
        """Read what made the socket ready, a while ago."""
        if self._over is not None or self._reading or self._lent:
            return
        self._go_on()
        if self._charged is not None:
            queue, share = self._charged
            queue.step(share, self._receive)

    def _receive(self) -> None:
        try:
            chunk = self._sock.recv(_CHUNK, _AT_ONCE)
        except BlockingIOError:
            self._idle_wakes += 1
            if self._idle_wakes > _MAX_IDLE_WAKES:  # an error queue, or a copy's reader, could keep the loop busy
                self._end(MachineError(ErrorCode.IO, "The connection into the sandbox is not usable."))
            return
        except OSError as error:
            self._end(MachineError(ErrorCode.IO, error.strerror or "The connection into the sandbox broke."))
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
            if self._size >= _MAX_UNREAD:
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

    def _shut(self, how: int = socket.SHUT_WR) -> None:
        with suppress(OSError):  # it may be gone already
            self._sock.shutdown(how)

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
        if self._lent:  # whoever has a copy of it hears of the end
            self._shut(socket.SHUT_RDWR)
        with suppress(OSError):  # it ends in order, and without a wait
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        fd_passing.close(self._sock.detach())
        _wake(self._waiter)
        _wake(self._room)
