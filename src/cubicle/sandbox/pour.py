"""The body of a request, poured from its socket into a file by threads: the event loop only says when more has come.

A burst is what the socket holds and what comes on its heels. One thread has the kernel move it through a pipe to the
disk; a second one makes the SHA-256 of what is there, which takes twice as long. Nothing of it is held in buffers
here, so the second may fall behind as far as it likes, and the client does not wait for it before the end.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import queue
import select
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, runtime_checkable

from cubicle.sandbox.host_folder import HostDraft

_PIPE = 1024**2
_MAPPED = 4 * 1024**2
_AT_ONCE = 2
_LONGEST = 128 * 1024**2  # then it is another client's turn
_WORTH_WAKING = 256 * 1024
_WORTH_A_THREAD = 512 * 1024
_LOOKS_UP = 1.0  # seconds between two looks whether the sandbox still runs
_HEELS = 2  # milliseconds that a burst waits for what follows it

_readers = ThreadPoolExecutor(_AT_ONCE, "pour-read")
_hashers = ThreadPoolExecutor(_AT_ONCE, "pour-hash")  # each reader has one at most, so none waits for a thread


@runtime_checkable
class Pourable(Protocol):
    """Can give itself to a thread."""

    async def into(self, draft: HostDraft) -> str:
        """Everything into the file; the SHA-256 of it."""
        ...


class BrokeOff(Exception):
    """The client went away before the end."""


class Pour:
    """`rest` bytes that are still to come from a non-blocking socket, of which this has a copy until it is closed."""

    def __init__(self, source: int, rest: int, idle: float = 300.0) -> None:
        self._source = socket.socket(fileno=os.dup(source))
        self._source.setblocking(False)  # as it is: the copy has to know
        self.rest = rest
        self._idle = idle
        self._digest = hashlib.sha256()
        self._written = 0
        self._summed = 0

    def close(self) -> None:
        _wakes_at(self._source, 1)  # the copy and the original share it
        self._source.close()

    async def into(self, draft: HostDraft, first: bytes) -> str:
        """Everything into the file, in a thread; the SHA-256 of it. Raises BrokeOff, and what the disk says."""
        loop = asyncio.get_running_loop()
        while first or self.rest:
            if not first:
                await self._news(draft)
            burst = loop.run_in_executor(_readers, self._burst, draft, first)
            first = b""
            try:
                await asyncio.shield(burst)
            except asyncio.CancelledError:
                await asyncio.wait([burst])  # a burst is short, and the socket must not be closed under it
                raise
        return self._digest.hexdigest()

    async def _news(self, draft: HostDraft) -> None:
        """Wait until it is worth waking up a thread, or until the client has sent as little as one byte for long."""
        loop = asyncio.get_running_loop()
        _wakes_at(self._source, min(self.rest, _WORTH_WAKING))
        came = asyncio.Event()
        loop.add_reader(self._source, came.set)
        end = loop.time() + self._idle
        try:
            while not came.is_set():
                draft.check()
                if loop.time() >= end:
                    return self._check_for_life()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(self._idle, _LOOKS_UP)):
                        await came.wait()
        finally:
            loop.remove_reader(self._source)

    def _check_for_life(self) -> None:
        try:
            self._source.recv(1, socket.MSG_PEEK)
        except OSError:
            raise BrokeOff from None

    def _burst(self, draft: HostDraft, first: bytes) -> None:
        began, end = self._written, self.rest - min(self.rest, _LONGEST)
        news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        hashing: Future[None] | None = None
        if first:
            draft.write([first])
            self._written += len(first)
        out, into = _pipe()
        try:
            while self.rest > end and (count := self._next(into, hashing)):
                draft.drain(out, count)
                self._written += count
                if hashing is not None:
                    news.put(True)
                elif self._written - began >= _WORTH_A_THREAD:
                    begun = threading.Event()
                    hashing = _hashers.submit(self._follow, draft, news, begun)
                    begun.wait()  # else it may wait milliseconds for a processor, behind this thread and the client
        finally:
            os.close(out)
            os.close(into)
            if hashing is not None:
                news.put(False)
                hashing.result()
        self._catch_up(draft)

    def _next(self, pipe: int, hashing: Future[None] | None) -> int:
        """Move what the socket has into the pipe; how many bytes, none if it is dry and nothing else is to be done."""
        while True:
            try:
                count = os.splice(self._source.fileno(), pipe, min(self.rest, _PIPE))
            except BlockingIOError:
                if hashing is None:
                    return 0
                behind = self._summed < self._written and not hashing.done()
                if _readable(self._source, self.rest) or behind:
                    continue
                return 0
            except OSError:
                raise BrokeOff from None
            if not count:
                raise BrokeOff
            self.rest -= count
            return count

    def _follow(self, draft: HostDraft, news: queue.SimpleQueue[bool], begun: threading.Event) -> None:
        begun.set()
        self._catch_up(draft)
        while news.get():
            self._catch_up(draft)

    def _catch_up(self, draft: HostDraft) -> None:
        while self._summed < self._written:
            stop = min(self._written, self._summed + _MAPPED)
            draft.add_to(self._digest, self._summed, stop)
            self._summed = stop


def _pipe() -> tuple[int, int]:
    """The two ends of an empty pipe."""
    ends = os.pipe()
    with suppress(OSError):  # a user may have only so many large ones; a small one does, too
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, _PIPE)
    return ends


def _wakes_at(source: socket.socket, count: int) -> None:
    """The kernel calls the socket readable when it holds so much, and not at every segment."""
    source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def _readable(source: socket.socket, wanted: int) -> bool:
    _wakes_at(source, min(wanted, _WORTH_WAKING))
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(_HEELS))
