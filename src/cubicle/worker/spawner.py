"""The service's side of the spawner: start it, have a worker forked, hear when one ends."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
from typing import Protocol

from cubicle.tasks import start_task
from cubicle.worker.channel import ControlChannel, Fields, Handler, channel_pair
from cubicle.worker.setup import Setup

log = logging.getLogger(__name__)

_START_SECONDS = 60.0
_FORK_SECONDS = 10.0
_END_SECONDS = 5.0


class NoWorker(Exception):
    """No worker could be started; the message says why."""


class WorkerProcess:
    """One worker: its process, and the service's end of its control channel."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """How it ended, in words."""
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self._handle = -1

    def kill(self) -> None:
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    async def wait(self, limit: float) -> str:
        """How it ended. One that does not within the limit is killed."""
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    return await asyncio.shield(self.ended)
            self.kill()
        return "its end was not seen"

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class Running(Protocol):
    """What is used of a process."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


async def start_program(channel: int) -> Running:
    """Start the spawner with its end of the channel. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "cubicle.worker", str(channel), str(os.getpid())),
        pass_fds=[channel],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


class Spawner:
    """One process of the service; it is started when there is none."""

    def __init__(self) -> None:
        self._process: Running | None = None
        self._channel: ControlChannel | None = None
        self._sock: socket.socket | None = None
        self._ready = asyncio.Event()
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._workers: dict[int, WorkerProcess] = {}

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start it, if it does not run. Raises NoWorker."""
        if self._channel is not None and not self._channel.closed.is_set():
            return
        await self._end()
        ours, theirs = channel_pair()
        self._ready.clear()
        self._forked = asyncio.Queue()
        try:
            self._process = await start_program(theirs.fileno())
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise NoWorker(f"its program cannot be started: {error.strerror}") from None
            raise
        finally:
            theirs.close()
        self._sock = ours
        handlers: dict[str, Handler] = {"ready": self._on_ready, "forked": self._on_forked, "ended": self._on_ended}
        self._channel = ControlChannel(ours, handlers)
        if not await first_of(self._ready, self._channel.closed, limit=_START_SECONDS):
            await self._end()
            raise NoWorker("its spawner ended at once, or did not start in time")

    async def fork(self, setup: Setup) -> WorkerProcess:
        """A new worker. Raises NoWorker."""
        await self.start()
        assert self._sock is not None
        described = await asyncio.to_thread(_memory_file, setup)
        ours, theirs = channel_pair()
        try:
            _pass(self._sock, theirs.fileno(), described)
            async with asyncio.timeout(_FORK_SECONDS):
                pid = await self._forked.get()
        except BaseException as error:
            ours.close()
            await self._end()
            if isinstance(error, TimeoutError | OSError):
                raise NoWorker(f"the spawner does not fork: {error}") from None
            raise
        finally:
            theirs.close()
            os.close(described)
        worker = self._workers[pid] = WorkerProcess(pid, ours)
        return worker

    async def close(self) -> None:
        """End the spawner, and any worker that did not end by itself."""
        for worker in list(self._workers.values()):
            worker.kill()
        await self._end()

    async def _end(self) -> None:
        """End this spawner. A worker of it goes on until its control channel is closed."""
        if self._channel is not None:
            self._channel.close()
            self._channel = self._sock = None
        for pid in list(self._workers):
            self._over(pid, "its spawner ended, too")
        if self._process is not None:
            process, self._process = self._process, None
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def _on_ready(self, fields: Fields, sockets: list[socket.socket]) -> None:
        self._ready.set()

    def _on_forked(self, fields: Fields, sockets: list[socket.socket]) -> None:
        self._forked.put_nowait(int(fields["pid"]))

    def _on_ended(self, fields: Fields, sockets: list[socket.socket]) -> None:
        status = int(fields["status"])
        words = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        self._over(int(fields["pid"]), words)

    def _over(self, pid: int, words: str) -> None:
        worker = self._workers.pop(pid, None)
        if worker is not None and not worker.ended.done():
            worker.ended.set_result(words)


async def first_of(wanted: asyncio.Event, other: asyncio.Event, *, limit: float | None) -> bool:
    """Wait for one of two events; whether the wanted one came."""
    tasks = [start_task(event.wait(), name="first of two events") for event in (wanted, other)]
    try:
        await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return wanted.is_set()


def _memory_file(setup: Setup) -> int:
    """The setup in a file that has no name: it holds secrets, and is longer than a message may be."""
    descriptor = os.memfd_create("cubicle worker setup", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        pickle.dump(setup, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _pass(sock: socket.socket, *descriptors: int) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    sock.sendmsg([b"fork"], ancillary, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
