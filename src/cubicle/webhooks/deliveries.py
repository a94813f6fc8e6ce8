"""The deliveries to one receiver, beside those to others: what is slow or dead here is so for nobody else."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar

from cubicle.tasks import start_task
from cubicle.webhooks.attempt import MAX_CONNECTIONS, Outcome, Sender
from cubicle.webhooks.pace import MAX_RETRY_AFTER
from cubicle.webhooks.receivers import Receiver
from cubicle.webhooks.store import Delivery, Store

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_JITTER = 0.2
_LOOK_SECONDS = 2.0
"""Between two looks into the queue at most: the command line may have changed it, or somebody the clock."""
_AGAIN_SECONDS = 1.0


class OnDisk(Protocol):
    """Does something in the thread of the queue."""

    async def __call__(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


class Deliveries:
    """Starts with the object; `close` ends it. A delivery that is cut off is made again by the next one."""

    def __init__(
        self,
        receiver: Receiver,
        store: Store,
        on_disk: OnDisk,
        *,
        retry_seconds: Sequence[float],
        timeout: float,
        clock: Callable[[], float],
    ) -> None:
        self.receiver = receiver
        self._store = store
        self._on_disk = on_disk
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._sender = Sender(receiver, timeout)
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._news.set()
        self._idle = asyncio.Event()
        self.failing = ""
        """Why the last attempt failed. While it is set there is one attempt at a time."""
        self._task = start_task(self._run(), name=f"webhooks to {receiver.name}")

    def wake(self) -> None:
        """There may be something to send."""
        self._idle.clear()
        self._news.set()

    async def idle(self) -> None:
        """Wait until nothing is due; for a receiver that fails that is now."""
        if not self.failing:
            await self._idle.wait()

    async def close(self) -> None:
        self._task.cancel()
        tasks = [self._task, *self._busy.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._sender.close()

    async def _run(self) -> None:
        while True:
            wait = _LOOK_SECONDS
            try:
                wait = await self._start_due()
            except (OSError, sqlite3.Error) as error:
                log.warning("the queue of webhooks cannot be read: %s", error, extra={"receiver": self.receiver.name})
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    async def _start_due(self) -> float:
        """Begin what is due, as far as there is room; for how long to wait then."""
        room = (1 if self.failing else MAX_CONNECTIONS) - len(self._busy)
        if room <= 0:
            return _LOOK_SECONDS
        name, busy, longest = self.receiver.name, list(self._busy), 2 * max(*self._retry_seconds, MAX_RETRY_AFTER)
        due = await self._on_disk(self._store.due, name, room, busy, longest)
        for delivery in due:
            task = start_task(self._deliver(delivery), name=f"webhook to {name}")
            self._busy[delivery.number] = task
        if not self._busy:
            self._idle.set()
        left = await self._on_disk(self._store.next_due, name, list(self._busy))
        return _LOOK_SECONDS if left is None or due else min(max(left, 0.01), _LOOK_SECONDS)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            outcome = await self._sender.attempt(delivery.id, delivery.body, self._clock())
            # Until it is written down the message counts as under way: it is not sent again and again meanwhile.
            while not await self._kept(delivery, outcome):  # noqa: ASYNC110 — nothing says when the disk has space
                await asyncio.sleep(_AGAIN_SECONDS)
            self.failing = outcome.error
        except Exception:
            log.exception("a webhook could not be sent", extra={"receiver": self.receiver.name})
            await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._busy.pop(delivery.number, None)
            self._news.set()

    async def _kept(self, delivery: Delivery, outcome: Outcome) -> bool:
        """Write down what became of it; False if the disk does not take it."""
        try:
            if not outcome.error:
                await self._on_disk(self._store.delivered, delivery)
                return True
            wait = None if outcome.final else self._wait(delivery.attempts, outcome.retry_after)
            await self._on_disk(self._store.failed, delivery, outcome.error, wait)
        except (OSError, sqlite3.Error):
            return False
        said = {"receiver": self.receiver.name, "webhook_id": delivery.id, "attempt": delivery.attempts + 1}
        if wait is None:
            log.error("a webhook is a dead letter: %s", outcome.error, extra=said)
        elif not self.failing:
            log.warning("a webhook was not delivered, and is tried again: %s", outcome.error, extra=said)
        return True

    def _wait(self, attempts: int, asked: int) -> float | None:
        """Seconds until the next attempt; None when there is none."""
        if attempts >= len(self._retry_seconds):
            return None
        wait = self._retry_seconds[attempts] * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 — no secret
        return max(wait, float(asked))
