"""A known number of bytes between a client's socket and one into a sandbox, moved by the kernel through a pipe.

In bursts, each in a thread; between them the event loop waits until one side is ready. Nothing of it is kept here but
what the pipe holds, so a side that does not read stops the other, and holds no thread.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic

from cubicle.machine.passed_file import FileThreads
from cubicle.machine.zero_copy import BrokeOff

WORTH = 1024**2
"""From so many bytes on a thread costs less than the copies."""
_PIPE = 1024**2
_MAX_PIPES = 16
"""Of one sandbox that are so large; others have what a pipe usually has, 64 KB."""
_MAX_SECONDS = 0.05  # then it is another client's turn
WORTH_A_MOVE = 128 * 1024
_WAIT, _WAIT_IF_BUSY = 10, 2
"""Milliseconds that a burst waits for more: with 2, a GB takes over a hundred threads where others use the processors
too. But one that waits is not there for others."""
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


def send_unpaced(sock: socket.socket) -> None:
    """Of a connection over loopback: what hosts choose for the internet, such as BBR, slows it down."""
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class SourceEnded(BrokeOff):
    """Nothing more comes from the source."""


class SocketSplice:
    """`first` bytes that were read already, then the rest from a non-blocking socket, of which this has a copy.

    Whoever has one closes it. What a thread still uses then is closed by that thread: until it is done, the numbers
    of the descriptors are not given to others.
    """

    def __init__(self, source: int, first: bytes, rest: int, threads: FileThreads, least: int = 1) -> None:
        """What remains when fewer than `least` bytes are to come is left to others."""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._busy = self._closed = self._has_large = False
        self._first = memoryview(first)
        self.rest = rest
        """Bytes that were not taken from the source."""
        self._least = least
        self._held = 0
        """Bytes in the pipe."""
        self._released = asyncio.Event()
        self._threads = threads
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._ends: list[socket.socket] = []
        try:
            self._source = self._kept(socket.socket(fileno=os.dup(source)))
            self._wake_at(min(rest, WORTH_A_MOVE))
            self._enlarge()
        except BaseException:
            self.close()
            raise

    def _enlarge(self) -> None:
        if self._threads.pipes >= _MAX_PIPES:
            return
        with suppress(OSError):  # without the right to a large pipe, a small one does it
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _PIPE)
            self._threads.pipes += 1
            self._has_large = True

    def _kept(self, end: socket.socket) -> socket.socket:
        self._ends.append(end)
        end.setblocking(False)
        return end

    def _wake_at(self, size: int) -> None:
        """The kernel calls the source ready when it holds so much: every move costs the same, however little it is."""
        self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, size))

    async def into(self, target: int, patience: float | None = None) -> int:
        """Everything to a non-blocking socket; how much it was. BrokeOff when either side ends before.

        With `patience` it ends early, and with an empty pipe, when so many seconds bring less than is worth a move.
        """
        size = len(self._first) + self.rest
        try:
            if self._closed:
                raise BrokeOff
            client = self._kept(socket.socket(fileno=os.dup(target)))
            while self._is_unfinished:
                wait = _WAIT_IF_BUSY if self._threads.are_busy else _WAIT
                waits_for = await self._threads.run(partial(self._burst, client, wait))
                if waits_for == select.POLLOUT:
                    await self._ready(client, waits_for)
                elif waits_for is not None:
                    async with asyncio.timeout(patience):
                        await self._ready(self._source, waits_for)
        except TimeoutError:
            pass
        except OSError:
            raise BrokeOff from None
        finally:
            self.close()
        return size - self.rest

    @property
    def _is_unfinished(self) -> bool:
        return bool(self._first or self._held or self.rest >= self._least)

    @property
    def is_released(self) -> bool:
        """Whether no thread uses it any more: then `rest` stays as it is."""
        return self._released.is_set()

    async def released(self) -> None:
        """Let go, and wait for the thread that is at work."""
        self.close()
        await self._released.wait()

    def close(self) -> None:
        """Let go, at once or when the thread that is at work is done."""
        with self._lock:
            closes = not self._busy and not self._closed
            self._closed = True
        if closes:
            self._let_go()

    def _let_go(self) -> None:
        self._threads.pipes -= self._has_large
        if self._ends:
            with suppress(OSError):
                self._wake_at(1)  # the copy and the original share it
        for end in self._ends:
            end.close()
        os.close(self._reader)
        os.close(self._writer)
        with suppress(RuntimeError):  # the loop is closed: the service ends
            self._loop.call_soon_threadsafe(self._released.set)

    @staticmethod
    async def _ready(sock: socket.socket, event: int) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        watch: Callable[..., None] = loop.add_reader if event == select.POLLIN else loop.add_writer
        unwatch: Callable[..., object] = loop.remove_reader if event == select.POLLIN else loop.remove_writer
        watch(sock, ready.set)
        try:
            await ready.wait()
        finally:
            unwatch(sock)

    # ---- in a thread

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._lock:
            if self._closed:  # before the thread came to it
                raise BrokeOff
            self._busy = True
        try:
            yield
        finally:
            with self._lock:
                self._busy = False
                closes = self._closed
            if closes:
                self._let_go()

    def _burst(self, client: socket.socket, wait: int) -> int | None:
        """Move what can be moved without a long wait; what has to be waited for, or None. Raises BrokeOff."""
        ends = monotonic() + _MAX_SECONDS
        with self._used():
            try:
                while not self._closed and self._is_unfinished and monotonic() < ends:
                    writes = bool(self._first or self._held)
                    if not (self._write(client) if writes else self._read()):
                        event = select.POLLOUT if writes else select.POLLIN
                        if not _is_ready(client if writes else self._source, event, wait):
                            return event
            except OSError:
                raise BrokeOff from None
        return None

    def _write(self, client: socket.socket) -> bool:
        try:
            if self._first:
                sent = client.send(self._first)
                self._first = self._first[sent:]
            else:
                sent = os.splice(self._reader, client.fileno(), self._held, flags=_FLAGS)
                self._held -= sent
        except BlockingIOError:
            return False
        return True

    def _read(self) -> bool:
        try:
            came = os.splice(self._source.fileno(), self._writer, min(self.rest, _PIPE), flags=_FLAGS)
        except BlockingIOError:
            return False
        except OSError:
            raise SourceEnded from None
        if not came:
            raise SourceEnded
        self.rest -= came
        if self.rest < WORTH_A_MOVE:
            self._wake_at(1)
        self._held += came
        return True


def _is_ready(sock: socket.socket, event: int, wait: int) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(wait))
