"""An open file that the guest hands over, so that its bytes go past the guest.

The guest may keep a copy of the descriptor, and move its position or cut the file short at any time. So nothing here
relies on the position, what the file is comes from the kernel alone, and only what it held at first is read.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar, cast

from cubicle.guest.operations import FileStat, Read
from cubicle.guest.wire import ErrorCode
from cubicle.machine import fd_passing
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.fd_passing import NotPassed
from cubicle.machine.files import FileReader
from cubicle.machine.zero_copy import BrokeOff

WORTH = 1024**2
"""From so many bytes on a file is read faster this way than it costs to ask for it."""
_CHUNK = 256 * 1024
"""One is sent while the next is read: two of them for each client, however slow."""
_SECONDS = 60.0
_MAX_LENGTH = 32 * 1024**2  # then it is another client's turn
_HEELS = 2  # milliseconds that a burst waits for the client to take more
_MAX_THREADS = 2
"""Of one sandbox: files of its that never answer hold up no other."""
_T = TypeVar("_T")


class FileThreads:
    """Runs what may wait for one sandbox's disk, each in a thread of its own, few at a time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_MAX_THREADS)
        self.pipes = 0
        """Large pipes that its splices have."""

    @property
    def are_busy(self) -> bool:
        """Whether who comes now has to wait for one."""
        return self._free.locked()

    async def run(self, job: Callable[[], _T]) -> _T:
        """What the job returns or raises; MachineError when it takes too long. The thread goes on then, and counts."""
        try:
            async with asyncio.timeout(_SECONDS):
                await self._free.acquire()
                done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
                self._start(job, done)
                return await asyncio.shield(done)
        except TimeoutError:
            raise MachineError(ErrorCode.IO, "The sandbox's disk does not answer.") from None
        except OSError as error:
            raise MachineError(ErrorCode.IO, error.strerror or "The file cannot be read.") from None

    def _start(self, job: Callable[[], _T], done: asyncio.Future[_T]) -> None:
        try:
            threading.Thread(target=self._run, args=(job, done), name="file-read", daemon=True).start()
        except RuntimeError:  # the system has no thread to give
            self._free.release()
            raise MachineError(ErrorCode.IO, "The host has no thread to read the file.") from None

    def _run(self, job: Callable[[], _T], done: asyncio.Future[_T]) -> None:
        outcome: _T | None = None
        problem: Exception | None = None
        try:
            outcome = job()
        except Exception as error:  # noqa: BLE001 — raised where it is waited for
            problem = error
        with suppress(RuntimeError):  # the loop is closed: the service ends
            done.get_loop().call_soon_threadsafe(self._finish, done, outcome, problem)

    def _finish(self, done: asyncio.Future[_T], outcome: _T | None, problem: Exception | None) -> None:
        self._free.release()
        if done.cancelled():
            return
        if problem is not None:
            done.set_exception(problem)
            done.exception()  # whoever waited may be gone
        else:
            done.set_result(cast(_T, outcome))


async def receive(link: socket.socket, line: GuestLink, threads: FileThreads, request: Read) -> PassedFile:
    """Ask the guest on a connection of its own for an open file, and check what comes.

    NotHanded when it brings none, MachineError when it says no. Waits without limit: the caller sets one.
    """
    descriptor, answer = await fd_passing.ask(link, request.replace(hand=True))
    shared = _Shared(descriptor, fd_passing.close)
    try:
        found = await threads.run(partial(_look_at, shared))
    except BaseException:
        shared.drop()
        raise
    rest = max(0, found.st_size - request.offset)
    length = rest if request.length is None else min(request.length, rest)
    return PassedFile(descriptor, line, threads, FileStat.of(answer.path, found), request.offset, length)


def _look_at(shared: _Shared) -> os.stat_result:
    """What the descriptor leads to, if it is a plain file that can only be read."""
    with shared.used() as descriptor:
        try:
            found = os.fstat(descriptor)
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        except OSError:
            raise NotPassed("this is not usable") from None
    if not stat.S_ISREG(found.st_mode) or flags & os.O_PATH or flags & os.O_ACCMODE != os.O_RDONLY:
        raise NotPassed("this is no plain file that can only be read")
    return found


class PassedFile(FileReader):
    """The same promises as a file that comes in frames; closed at the latest when the line to its sandbox is lost."""

    def __init__(
        self, descriptor: int, line: GuestLink, threads: FileThreads, stat: FileStat, offset: int, length: int
    ) -> None:
        super().__init__(stat, length)
        self._descriptor = descriptor
        self._line = line
        self._threads = threads
        self._at = offset
        self._end = offset + length
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False
        line.lost.add_done_callback(self._on_lost)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._at < self._end:
            chunk = await self._threads.run(self._read)
            if not chunk:
                return  # it was cut short
            self._at += len(chunk)
            yield chunk

    async def into(self, target: int) -> int:
        """Everything to a non-blocking socket, by the kernel alone; how much it was. BrokeOff when nobody takes it."""
        begin = self._at
        copy = _Shared(os.dup(target))  # the number must not be another connection's while a thread may write to it
        try:
            while self._at < self._end:
                if not await self._threads.run(partial(self._burst, copy)):
                    break  # it was cut short
                if self._at < self._end:
                    await _writable(copy.number)
        finally:
            copy.drop()
        return self._at - begin

    def close(self) -> None:
        """Let go, at once or when the thread that reads is done: the number must not be another file's meanwhile."""
        self._line.lost.remove_done_callback(self._on_lost)
        with self._lock:
            closes = not self._busy and not self._closed
            self._closed = True
        if closes:
            fd_passing.close(self._descriptor)

    def _on_lost(self, lost: asyncio.Future[None]) -> None:
        self.close()

    # ---- in a thread

    @contextmanager
    def _held(self) -> Iterator[int]:
        with self._lock:
            if self._closed:
                raise Gone("The sandbox ended, or the connection to it was lost.")
            self._busy = True
        try:
            yield self._descriptor
        finally:
            with self._lock:
                self._busy = False
                closes = self._closed
            if closes:
                os.close(self._descriptor)

    def _read(self) -> bytes:
        with self._held() as source:
            return os.pread(source, min(_CHUNK, self._end - self._at), self._at)

    def _burst(self, client: _Shared) -> bool:
        """As much as the other side takes without a long wait; False at the end of a file that was cut short."""
        end = min(self._end, self._at + _MAX_LENGTH)
        with client.used() as target, self._held() as source:
            while self._at < end and not self._closed:
                try:
                    sent = os.sendfile(target, source, self._at, end - self._at)
                except BlockingIOError:
                    if _takes(target):
                        continue
                    return True
                except OSError as error:
                    if error.errno == errno.EIO:  # the disk's; all others are the socket's
                        raise
                    raise BrokeOff from None
                if not sent:
                    return False
                self._at += sent
        return True


class _Shared:
    """A descriptor that a thread may still use when its owner is done with it: the last of the two closes it."""

    def __init__(self, number: int, close: Callable[[int], None] = os.close) -> None:
        self.number = number
        self._close = close
        self._lock = threading.Lock()
        self._users = 1

    @contextmanager
    def used(self) -> Iterator[int]:
        with self._lock:
            if not self._users:
                raise BrokeOff
            self._users += 1
        try:
            yield self.number
        finally:
            self.drop()

    def drop(self) -> None:
        with self._lock:
            self._users -= 1
            closes = not self._users
        if closes:
            self._close(self.number)


def _takes(target: int) -> bool:
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    return bool(poll.poll(_HEELS))


async def _writable(target: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(target, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(target)
