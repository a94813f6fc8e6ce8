"""The body of a request, poured from its socket into a file by threads: the event loop only says when more has come.

A burst is what the socket holds and what comes on its heels. One thread has the kernel move it through a pipe to the
disk; a second one makes the SHA-256 of what is there, which takes twice as long. Nothing of it is held in buffers
here, so the sum may fall behind as far as it likes, and the client does not wait for it before the end. What takes an
upload longest is then the sum, and whatever keeps it from its processor.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import hashlib
import os
import queue
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Protocol, runtime_checkable

from cubicle.machine.upload_folder import UploadDraft

_PIPE = 1024**2
_MAPPED = 4 * 1024**2
_AT_ONCE = 2
_MAX_CONCURRENT_SYNCS = 16
_MAX_LENGTH = 128 * 1024**2  # then it is another client's turn
_WORTH_A_BURST = 256 * 1024
_WORTH_AWAITING = 512 * 1024
_WORTH_MOVING = 1024**2
_WORTH_A_THREAD = 4 * 1024**2  # so much to sum up that more is there before it is done: who sleeps wakes up late
TIMEOUT = 300.0  # seconds that a client may keep silent
_LOOKS_UP = 1.0  # seconds between two looks whether the sandbox still runs
_HEELS = 2  # milliseconds that a burst waits for what follows it

_libc = ctypes.CDLL(None)


class Mover:
    """A thread beside another one, which keeps its processor to itself: the scheduler would have them share it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "pour-move")
        self._id = self._thread.submit(threading.get_native_id).result()
        self._is_away = False

    def start(self, move: Callable[[], bool]) -> Future[bool]:
        self.stay_away()
        return self._thread.submit(move)

    def stay_away(self) -> None:
        """From the processor of the caller, if there is another one."""
        if not self._is_away:
            self._is_away = True
            allowed = os.sched_getaffinity(0)
            self._put_on(allowed - {_libc.sched_getcpu()} or allowed)

    def roam(self) -> None:
        """The caller has nothing to do: its processor is free."""
        if self._is_away:
            self._is_away = False
            self._put_on(os.sched_getaffinity(0))

    def _put_on(self, processors: set[int]) -> None:
        with suppress(OSError):
            os.sched_setaffinity(self._id, processors)


class _Own(threading.local):
    """What each thread that sums up has for itself."""

    @cached_property
    def mover(self) -> Mover:
        return Mover()


_own = _Own()
_summers = ThreadPoolExecutor(_AT_ONCE, "pour-sum")
_syncers = ThreadPoolExecutor(_MAX_CONCURRENT_SYNCS, "pour-sync")  # a slow disk holds up no other upload


@runtime_checkable
class ZeroCopySource(Protocol):
    """Can give itself to a thread."""

    async def into(self, begins: Callable[[], UploadDraft]) -> tuple[os.stat_result, str]:
        """Begin the file, pour everything into it and publish it; what it is then, and its SHA-256."""
        ...


class BrokeOff(Exception):
    """The client went away before the end."""


class ZeroCopy:
    """`rest` bytes that are still to come from a non-blocking socket, of which this has a copy until it is closed."""

    def __init__(self, source: int, rest: int, idle: float = TIMEOUT) -> None:
        self._source = socket.socket(fileno=os.dup(source))
        self._source.setblocking(False)  # as it is: the copy has to know
        self.rest = rest
        self._idle = idle
        self._digest = hashlib.sha256()
        self._draft: UploadDraft | None = None
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._summing = False
        self._written = 0
        self._summed = 0

    def close(self) -> None:
        _wakes_at(self._source, 1)  # the copy and the original share it
        self._source.close()

    async def into(self, begins: Callable[[], UploadDraft], first: bytes) -> tuple[os.stat_result, str]:
        """As Pourable's, in a thread. Raises BrokeOff, and what the disk says; then nothing of it is left."""
        loop = asyncio.get_running_loop()
        found = None
        try:
            whole = False
            while not whole:
                if self._draft is not None:
                    await self._more(self._draft)
                burst = loop.run_in_executor(_summers, self._burst, begins, first)
                first = b""
                try:
                    whole = await asyncio.shield(burst)
                except asyncio.CancelledError:
                    await asyncio.wait([burst])  # a burst is short, and the socket must not be closed under it
                    raise
            published = loop.run_in_executor(_syncers, self._publish)
            try:
                found = await asyncio.shield(published)
            except asyncio.CancelledError:
                await asyncio.wait([published])
                found = published.result()  # it has its name: nobody is to hear that it failed
        finally:
            if found is None and self._draft is not None:
                await asyncio.shield(loop.run_in_executor(None, self._draft.close))
        return found, self._digest.hexdigest()

    async def _more(self, draft: UploadDraft) -> None:
        """Wait until it is worth waking up a thread, or until the client has sent as little as one byte for long."""
        loop = asyncio.get_running_loop()
        _wakes_at(self._source, min(self.rest, _WORTH_A_BURST))
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

    def _burst(self, begins: Callable[[], UploadDraft], first: bytes) -> bool:
        """Whether the file is whole; False as long as more is to come."""
        awaited = self._draft is None  # the client has just begun: what is to come is at hand
        draft = self._draft = self._draft or begins()
        if first:
            draft.write([first])
            self._written += len(first)
        end = max(0, self.rest - _MAX_LENGTH)
        out, into = _pipe()
        try:
            much = self._move(draft, out, into, max(end, self.rest - _WORTH_A_THREAD), awaited=awaited)
            if much and self.rest > end:
                self._sum_while_it_comes(draft, lambda: self._move(draft, out, into, end, awaited=True))
        finally:
            os.close(out)
            os.close(into)
        self._catch_up(draft)
        return not self.rest

    def _publish(self) -> os.stat_result:
        """Put the file on disk, which may take a while."""
        assert self._draft is not None
        found = self._draft.publish()
        self._draft.close()
        return found

    def _sum_while_it_comes(self, draft: UploadDraft, move: Callable[[], bool]) -> None:
        """It is the other thread that moves: this one has a processor already, has more to do, and is to keep it."""
        self._news = queue.SimpleQueue()
        self._summing = True
        mover = _own.mover
        moving = mover.start(move)
        moving.add_done_callback(lambda _: self._news.put(False))
        try:
            comes = True
            while comes:
                if self._written - self._summed >= _WORTH_A_THREAD:
                    mover.stay_away()
                self._catch_up(draft)
                if self._news.empty():
                    mover.roam()
                comes = self._news.get()
        finally:
            self._summing = False
            mover.roam()
            moving.result()

    def _move(self, draft: UploadDraft, out: int, into: int, end: int, *, awaited: bool) -> bool:
        """Move what the socket has through the pipe to the disk, until so many bytes are left; False if it is dry."""
        began = self._written
        while self.rest > end:
            try:
                # Up to where a write is not cut, so that the file lies in large pieces, which are mapped in one go.
                count = os.splice(self._source.fileno(), into, min(self.rest, _PIPE - self._written % _PIPE))
            except BlockingIOError:
                awaited = awaited or self._written - began >= _WORTH_AWAITING
                behind = self._summing and self._summed < self._written
                if (awaited and _readable(self._source, self.rest)) or behind:
                    continue
                return False
            except OSError:
                raise BrokeOff from None
            if not count:
                raise BrokeOff
            self.rest -= count
            draft.drain(out, count)
            self._written += count
            if self._summing:
                self._news.put(True)
        return True

    def _catch_up(self, draft: UploadDraft) -> None:
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
    _wakes_at(source, min(wanted, _WORTH_MOVING))
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(_HEELS))
