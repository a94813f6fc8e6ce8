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
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from cubicle.sandbox import handover
from cubicle.sandbox.files import FileReader, Stat
from cubicle.sandbox.handover import NotHanded
from cubicle.sandbox.line import Gone, Line, MachineError
from cubicle.sandbox.pour import BrokeOff

WORTH = 1024**2
"""From so many bytes on a file is read faster this way than it costs to ask for it."""
_CHUNK = 256 * 1024
"""One is sent while the next is read: two of them for each client, however slow."""
_SECONDS = 60.0
_LONGEST = 32 * 1024**2  # then it is another client's turn
_HEELS = 2  # milliseconds that a burst waits for the client to take more
_threads = ThreadPoolExecutor(4, "file-read")
_T = TypeVar("_T")


async def receive(link: socket.socket, line: Line, offset: int, length: int | None, **fields: object) -> HandedFile:
    """Ask the guest on a connection of its own for an open file, and check what comes.

    NotHanded when it brings none, MachineError when it says no. Waits without limit: the caller sets one.
    """
    descriptor, said = await handover.ask(link, "read", **fields)
    found = checked(descriptor)
    rest = max(0, found.st_size - offset)
    known = Stat.of(str(said.get("path", "")), found)
    return HandedFile(descriptor, line, known, offset, rest if length is None else min(length, rest))


def checked(descriptor: int) -> os.stat_result:
    """What the descriptor leads to, if it is a plain file that can only be read; else it is closed."""
    try:
        found = os.fstat(descriptor)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError:
        handover.close(descriptor)
        raise NotHanded("this is not usable") from None
    if not stat.S_ISREG(found.st_mode) or flags & os.O_PATH or flags & os.O_ACCMODE != os.O_RDONLY:
        handover.close(descriptor)
        raise NotHanded("this is no plain file that can only be read")
    return found


class HandedFile(FileReader):
    """The same promises as a file that comes in frames; closed at the latest when the line to its sandbox is lost."""

    def __init__(self, descriptor: int, line: Line, stat: Stat, offset: int, length: int) -> None:
        super().__init__(stat, length)
        self._descriptor = descriptor
        self._line = line
        self._at = offset
        self._end = offset + length
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False
        line.lost.add_done_callback(self._on_lost)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._at < self._end:
            chunk = await _done(_threads.submit(self._read))
            if not chunk:
                return  # it was cut short
            self._at += len(chunk)
            yield chunk

    async def into(self, target: int) -> int:
        """Everything to a non-blocking socket, by the kernel alone; how much it was. BrokeOff when nobody takes it."""
        begin = self._at
        copy = os.dup(target)
        burst: Future[bool] | None = None
        try:
            while self._at < self._end:
                burst = _threads.submit(self._burst, copy)
                if not await _done(burst):
                    break  # it was cut short
                if self._at < self._end:
                    await _writable(copy)
        finally:
            if burst is None:
                os.close(copy)
            else:  # the number must not be another connection's while a thread may write to it
                burst.add_done_callback(lambda _: os.close(copy))
        return self._at - begin

    def close(self) -> None:
        """Let go, at once or when the thread that reads is done: the number must not be another file's meanwhile."""
        self._line.lost.remove_done_callback(self._on_lost)
        with self._lock:
            closes = not self._busy and not self._closed
            self._closed = True
        if closes:
            handover.close(self._descriptor)

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

    def _burst(self, target: int) -> bool:
        """As much as the other side takes without a long wait; False at the end of a file that was cut short."""
        end = min(self._end, self._at + _LONGEST)
        with self._held() as source:
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


async def _done(job: Future[_T]) -> _T:
    try:
        async with asyncio.timeout(_SECONDS):
            return await asyncio.wrap_future(job)
    except TimeoutError:
        raise MachineError("io", "The sandbox's disk does not answer.") from None
    except OSError as error:
        raise MachineError("io", error.strerror or "The file cannot be read.") from None


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
