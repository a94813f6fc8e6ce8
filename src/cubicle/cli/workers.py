"""`cubicle serve` with WORKERS: a parent that starts the workers, starts those anew that end, and ends all of them.

The parent serves nothing. It holds the lock of DATA_DIR, and has the port reserved that every worker listens on by
itself: the kernel divides new connections among those that do. Each worker reads what it is from its standard input,
which stays open for as long as the parent lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from cubicle.cli.terminal import say_address
from cubicle.members import disk_records
from cubicle.sandbox.service_lock import only_service_of
from cubicle.settings import Settings, base_url
from cubicle.tasks import start_task

log = logging.getLogger("cubicle")

_STEADY_SECONDS = 10.0
"""A worker that ended sooner after its start is started again after a pause."""
_PAUSES = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)
BEAT_SECONDS = 1.0
"""Between two bytes by which a worker shows that its event loop goes on."""


def run(settings: Settings, given: Mapping[str, Any]) -> None:
    """Until a signal ends it. `given`: what the command line says other than the environment."""
    with contextlib.closing(_reserve(settings)) as reserved:
        place = "{}:{}".format(*reserved.getsockname()[:2])
        with only_service_of(settings.data_dir, place) as lock:
            disk_records.prepare(settings.data_dir)
            given = {**given, "port": reserved.getsockname()[1]}
            code = asyncio.run(_Parent(settings, given, lock).run())
    if code:
        raise click.exceptions.Exit(code)


def _reserve(settings: Settings) -> socket.socket:
    """Bound, and not listening: no connection comes here."""
    sock = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((settings.host, settings.port))
    return sock


class _Parent:
    def __init__(self, settings: Settings, given: Mapping[str, Any], lock: int) -> None:
        self._settings = settings
        self._lock = lock
        told = {**settings.model_dump(mode="json"), **given}
        self._told = {"settings": told, "slots": settings.workers, "secret": secrets.token_hex(32)}
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._signals = 0
        self._over = asyncio.Event()

    async def run(self) -> int:
        """The exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        first = _Worker(self._told, 1, self._lock, first=True)
        code = await self._until_ready(first)
        if code is None and self._signals:
            code = await self._ended(first)  # it drains: without its parent it would be cut off
        if code is not None:
            return max(code, 0) if self._signals else code
        say_address(self._settings, base_url(self._settings))
        slots = range(1, self._settings.workers + 1)
        keeping = [start_task(self._keep(slot, first if slot == 1 else None), name=f"worker {slot}") for slot in slots]
        await asyncio.gather(*keeping)
        return 0

    def _end(self) -> None:
        """The first signal lets what runs finish, a second one does not."""
        self._signals += 1
        self._over.set()
        for process in self._running.values():
            self._signal(process)

    @staticmethod
    def _signal(process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)

    async def _until_ready(self, worker: _Worker) -> int | None:
        """Start it; None once it serves, or the exit code of one that did not come so far."""
        process = self._running[worker.slot] = await worker.start()
        if self._signals:  # it came while this one was started; the others have it
            self._signal(process)
        return None if await worker.ready() else await self._ended(worker)

    async def _ended(self, worker: _Worker) -> int:
        code = await worker.wait()
        self._running.pop(worker.slot, None)
        return code

    async def _watched(self, worker: _Worker) -> int:
        """The exit code; a worker that hangs is killed, which lets go of its lock: others take over its chats."""
        limit = self._settings.worker_hang_seconds
        watching = start_task(worker.kill_if_silent(limit), name=f"watch worker {worker.slot}") if limit else None
        try:
            return await self._ended(worker)
        finally:
            if watching is not None:
                watching.cancel()

    async def _keep(self, slot: int, worker: _Worker | None) -> None:
        """Have one worker run, whatever happens to it."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                if worker is None:
                    worker = _Worker(self._told, slot, self._lock, first=False)
                    await self._until_ready(worker)
                code = await self._watched(worker)
                why = f"a worker ended: signal {-code}" if code < 0 else f"a worker ended: exit code {code}"
            except OSError as error:  # neither memory nor a process is to be had: the others serve on
                why = f"a worker could not be started: {error.strerror or error}"
            worker = None
            if self._signals:
                return
            failures = failures + 1 if time.monotonic() - began < _STEADY_SECONDS else 0
            pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
            log.error("%s; it is started again", why, extra={"worker": slot, "pause": pause})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._over.wait()
            if self._signals:
                return


class _Worker:
    """One process of `cubicle.cli.worker`."""

    def __init__(self, told: Mapping[str, Any], slot: int, lock: int, *, first: bool) -> None:
        """`lock` is that of DATA_DIR: it is held for as long as a worker lives, whatever becomes of the parent."""
        self.slot = slot
        self._lock = lock
        self._told = {**told, "slot": slot, "first": first, "lock": lock}
        self._process: asyncio.subprocess.Process
        self._ready: asyncio.StreamReader

    async def start(self) -> asyncio.subprocess.Process:
        reading, writing = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "cubicle.cli.worker", str(writing)),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[writing, self._lock],
                start_new_session=True,  # a key of the terminal reaches the parent alone
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._ready = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._ready)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb", 0))
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._told).encode() + b"\n")
        return self._process

    async def ready(self) -> bool:
        """Whether it serves; False when it ended before that."""
        return bool(await self._ready.read(1))

    async def kill_if_silent(self, limit: float) -> None:
        """Once it serves. Time is counted in short steps: a parent that stood still itself has counted one of them."""
        silent, step = 0.0, min(BEAT_SECONDS * 2, limit)
        while silent < limit:
            try:
                async with asyncio.timeout(step):
                    if not await self._ready.read(4096):
                        return  # it is ending
                silent = 0.0
            except TimeoutError:
                silent += step
        log.error("a worker hangs: it is killed", extra={"worker": self.slot, "seconds": silent})
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        return await self._process.wait()
