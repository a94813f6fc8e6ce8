"""The webhooks of one service: what happened goes to disk at once, and to each receiver by a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from cubicle.tasks import start_task
from cubicle.webhooks import receivers as files
from cubicle.webhooks.events import Event
from cubicle.webhooks.pace import RETRY_SECONDS, TIMEOUT
from cubicle.webhooks.receivers import BadReceivers, Receiver
from cubicle.webhooks.store import KeyUse, Store

if TYPE_CHECKING:
    from cubicle.webhooks.deliveries import Deliveries

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_PENDING = 2_000
"""Events that wait for the disk; further ones are lost, and the log says how many."""
_SETTLE_SECONDS = 2.0
_AGAIN_SECONDS = 1.0
_WATCH_SECONDS = 1.0
_CLOSE_SECONDS = 2.0


class Webhooks:
    """Without a file nothing is kept and nothing sent."""

    def __init__(
        self,
        folder: Path,
        file: Path | None,
        *,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
        timeout: float = TIMEOUT,
        clock: Callable[[], float] = time.time,
        shared: bool = False,
        across_hosts: bool = False,
        delivers: bool = True,
    ) -> None:
        """`shared`: other processes of the service tell of events, too. One of them delivers. `across_hosts`: some are
        on other hosts."""
        self._shared = shared
        self._delivers = delivers
        self._file = file
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._timeout = timeout
        self.store = Store(folder, clock, across_hosts=across_hosts)
        self._receivers: tuple[Receiver, ...] = ()
        self._deliveries: dict[str, Deliveries] = {}
        self._begin: type[Deliveries] | None = None
        self._pending: list[Event | KeyUse] = []
        self._news = asyncio.Event()
        self._written: list[asyncio.Future[bool]] = []
        """Who waits for what is pending to be on disk."""
        self._stuck = False
        """The disk takes nothing at present: nobody waits for it."""
        self._lost = 0
        self._seen: tuple[int, ...] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._disk: ThreadPoolExecutor | None = None

    @property
    def enabled(self) -> bool:
        return self._file is not None

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        return self._receivers

    def failing(self, receiver: str) -> str:
        """Why the last attempt at a receiver failed; empty if it did not."""
        known = self._deliveries.get(receiver)
        return known.failing if known is not None else ""

    async def __aenter__(self) -> Self:
        """Raises BadReceivers."""
        if self._file is None:
            return self
        self._seen = await asyncio.to_thread(_seen, self._file)
        self._receivers = await asyncio.to_thread(files.read, self._file)
        self._begin = await asyncio.to_thread(_deliveries)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="webhooks")
        try:
            await self.on_disk(self.store.open)
            await self.on_disk(self.store.give_up_others, [one.name for one in self._receivers])
        except (OSError, sqlite3.Error) as error:
            log.error("the queue of webhooks cannot be opened yet: %s", error)
        self._serve()
        self._tasks = [
            start_task(self._write(), name="webhooks"),
            start_task(self._watch(), name="watch WEBHOOKS_FILE"),
        ]
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Write what is pending and give first attempts a moment. What is not delivered by then waits on disk."""
        if self._disk is None:
            return
        await self.settle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*(one.idle() for one in self._deliveries.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await asyncio.gather(*(one.close() for one in self._deliveries.values()))
        await self.on_disk(self.store.close)
        self._disk.shutdown(wait=False)

    # ---- what happens

    def emit(self, event: Event) -> None:
        """Tell of an event. Does not wait: `settle` does."""
        if any(one.wants(event) for one in self._receivers):
            self._queue(event)

    def emit_key_use(self, use: KeyUse) -> None:
        """The same if the key was not used from there before."""
        if self.enabled:
            self._queue(use)

    def _queue(self, one: Event | KeyUse) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._lost += 1
            return
        self._pending.append(one)
        self._news.set()

    async def settle(self, seconds: float = _SETTLE_SECONDS) -> bool:
        """Wait until everything that was told before is on disk; False if the disk does not take it."""
        if not self._pending:
            return True
        if self._stuck:
            return False
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._written.append(done)
        self._news.set()
        try:
            async with asyncio.timeout(seconds):
                return await done
        except TimeoutError:
            return False

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            batch, waiting = list(self._pending), self._written
            self._written = []
            uses = [one for one in batch if isinstance(one, KeyUse)]
            events = [one for one in batch if isinstance(one, Event)]
            try:
                await self.on_disk(self.store.add, uses, events, self._told)
            except (OSError, sqlite3.Error) as error:
                if not self._stuck:
                    log.error("events of webhooks cannot be written, and wait in memory: %s", error)
                self._stuck = True
                self._release(waiting, written=False)
                await asyncio.sleep(_AGAIN_SECONDS)
                self._news.set()
                continue
            except Exception:
                log.exception("events of webhooks could not be written, and are lost", extra={"lost": len(batch)})
            if self._stuck:
                log.info("events of webhooks are written again")
            self._stuck = False
            del self._pending[: len(batch)]
            self._say_lost()
            self._release(waiting, written=True)
            for one in self._deliveries.values():
                one.wake()

    @staticmethod
    def _release(waiting: list[asyncio.Future[bool]], *, written: bool) -> None:
        for done in waiting:
            if not done.done():
                done.set_result(written)

    def _told(self, event: Event) -> list[str]:
        """In the thread: the receivers are one tuple, which is replaced whole."""
        return [one.name for one in self._receivers if one.wants(event)]

    def _say_lost(self) -> None:
        if self._lost:
            log.error("events of webhooks were lost: more came than could be written", extra={"lost": self._lost})
            self._lost = 0

    # ---- receivers

    def _serve(self) -> None:
        assert self._begin is not None
        receivers = self._receivers if self._delivers else ()
        for receiver in (one for one in receivers if one.name not in self._deliveries):
            self._deliveries[receiver.name] = self._begin(
                receiver, self.store, self.on_disk, retry_seconds=self._retry_seconds, timeout=self._timeout,
                clock=self._clock,
            )  # fmt: skip

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await self.look()
                if self._shared:
                    for one in self._deliveries.values():
                        one.wake()
            except Exception:
                log.exception("WEBHOOKS_FILE could not be looked at")

    async def look(self) -> None:
        """Read the file again if it changed. One that cannot be used, or is gone, changes nothing but the log."""
        assert self._file is not None
        seen = await asyncio.to_thread(_seen, self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            receivers = await asyncio.to_thread(files.read, self._file)
        except BadReceivers as error:
            log.error("WEBHOOKS_FILE cannot be used, and the receivers from before stay: %s", error)
            return
        self._receivers = receivers
        changed = [name for name, one in self._deliveries.items() if one.receiver not in receivers]
        await asyncio.gather(*(self._deliveries.pop(name).close() for name in changed))
        self._serve()
        try:
            await self.on_disk(self.store.give_up_others, [one.name for one in receivers])
        except (OSError, sqlite3.Error) as error:
            log.error("what waits for receivers that are gone cannot be given up yet: %s", error)
            self._seen = None  # the next look does it
            return
        log.info("WEBHOOKS_FILE was read again", extra={"receivers": len(receivers)})

    async def retry(self, ids: Sequence[str] | None, receiver: str = "") -> int:
        """Send dead letters again, now; None: all of them. How many. Raises sqlite3.Error, OSError."""
        found = await self.on_disk(self.store.retry, ids, receiver)
        for one in self._deliveries.values():
            one.wake()
        return found

    async def on_disk(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it in the one thread that uses the queue. Raises sqlite3.Error, OSError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk, functools.partial(work, *args, **kwargs))


def _deliveries() -> type[Deliveries]:
    """A third of a second to import, for an HTTP client that only webhooks use."""
    from cubicle.webhooks.deliveries import Deliveries

    return Deliveries


def _seen(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
