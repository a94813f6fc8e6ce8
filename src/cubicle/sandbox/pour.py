"""The body of a request, poured from its socket into a file by threads: the event loop only says when more has come.

A burst is what the socket holds and what comes on its heels. One thread reads and writes it, a second one makes the
SHA-256, which takes as long as both; neither keeps the interpreter. Nothing is left in the buffers between bursts, so
there are as many as threads, however many clients send.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import queue
import select
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, runtime_checkable

_PIECE = 1024**2
_PIECES = 3
_AT_ONCE = 2
_LONGEST = 128 * 1024**2  # then it is another client's turn
_WORTH_WAKING = 256 * 1024
_HEELS = 2  # milliseconds that a burst waits for what follows it

Take = Callable[[memoryview], None]
_readers = ThreadPoolExecutor(_AT_ONCE, "pour-read")
_hashers = ThreadPoolExecutor(_AT_ONCE, "pour-hash")  # each reader has one at most, so none waits for a thread
_spare: queue.SimpleQueue[list[memoryview]] = queue.SimpleQueue()


@runtime_checkable
class Pourable(Protocol):
    """Can give itself to a thread."""

    async def into(self, take: Take) -> str:
        """Everything to `take`, in order; the SHA-256 of it."""
        ...


class BrokeOff(Exception):
    """The client went away before the end."""


class Pour:
    """`rest` bytes that are still to come from a non-blocking socket, of which this has a copy until it is closed."""

    def __init__(self, source: int, rest: int, idle: float = 300.0) -> None:
        self._source = socket.socket(fileno=os.dup(source))
        self.rest = rest
        self._idle = idle
        self._digest = hashlib.sha256()

    def close(self) -> None:
        _wakes_at(self._source, 1)  # the copy and the original share it
        self._source.close()

    async def into(self, take: Take, first: bytes) -> str:
        """Everything to `take`, in order, in a thread; the SHA-256 of it. Raises BrokeOff, and what `take` raises."""
        loop = asyncio.get_running_loop()
        if first:
            await loop.run_in_executor(_readers, self._both, memoryview(first), take)
        while self.rest:
            await self._news(loop)
            burst = loop.run_in_executor(_readers, self._burst, take)
            try:
                await asyncio.shield(burst)
            except asyncio.CancelledError:
                await asyncio.wait([burst])  # a burst is short, and the socket must not be closed under it
                raise
        return self._digest.hexdigest()

    async def _news(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until it is worth waking up a thread."""
        _wakes_at(self._source, min(self.rest, _WORTH_WAKING))
        came = asyncio.Event()
        loop.add_reader(self._source, came.set)
        try:
            async with asyncio.timeout(self._idle):
                await came.wait()
        except TimeoutError:
            raise BrokeOff from None
        finally:
            loop.remove_reader(self._source)

    def _both(self, piece: memoryview, take: Take) -> None:
        take(piece)
        self._digest.update(piece)

    def _burst(self, take: Take) -> None:
        try:
            pieces = _spare.get_nowait()
        except queue.Empty:
            pieces = [memoryview(bytearray(_PIECE)) for _ in range(_PIECES)]
        free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for piece in pieces:
            free.put(piece)
        full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        hashing: Future[None] | None = None
        end = self.rest - min(self.rest, _LONGEST)
        try:
            while self.rest > end:
                piece = free.get()
                filled = self._fill(piece, waits=hashing is not None)
                if filled < _PIECE:
                    end = self.rest  # the socket is dry, or it was the last
                if hashing is None and self.rest > end:
                    hashing = _hashers.submit(self._hash, full, free)
                if hashing is not None:
                    full.put(piece[:filled])
                    take(piece[:filled])
                else:
                    self._both(piece[:filled], take)
        finally:
            if hashing is not None:
                full.put(None)
                hashing.result()
            _spare.put(pieces)

    def _fill(self, piece: memoryview, *, waits: bool) -> int:
        filled, most = 0, min(len(piece), self.rest)
        while filled < most:
            try:
                count = self._source.recv_into(piece[filled:most])
            except BlockingIOError:
                if waits and _readable(self._source, most - filled):
                    continue
                break
            except OSError:
                raise BrokeOff from None
            if not count:
                raise BrokeOff
            filled += count
        self.rest -= filled
        return filled

    def _hash(self, full: queue.SimpleQueue[memoryview | None], free: queue.SimpleQueue[memoryview]) -> None:
        while (piece := full.get()) is not None:
            self._digest.update(piece)
            free.put(piece)


def _wakes_at(source: socket.socket, count: int) -> None:
    """The kernel calls the socket readable when it holds so much, and not at every segment."""
    source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def _readable(source: socket.socket, wanted: int) -> bool:
    _wakes_at(source, min(wanted, _WORTH_WAKING))
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(_HEELS))
