"""What a caller sees while a tool runs: its output in batches, and a sign of life when there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from cubicle.tools.output import Cap

WINDOW = 0.1
GATHER = 0.05
"""How long output waits for more of it: most commands end within that time, and their answer says it all."""
HEARTBEAT = 15.0
_BATCH_CAP = 16_000

Send = Callable[[str, float], Awaitable[None]]
"""Sends one batch to the caller: the text, and the seconds since the start."""


class ProgressStream:
    """Gathers output without ever waiting, and sends it after `GATHER` seconds, but at most every `WINDOW` seconds.

    A caller that reads slowly gets fewer and larger batches, capped in the middle; the command is not held up.
    A timer, not a task, waits for the first output: most commands end before it fires.
    """

    def __init__(self, send: Send, beat: Send, *, flush: bool) -> None:
        self._send = send
        self._beat = beat
        self._flush = flush
        self._batch = Cap(_BATCH_CAP)
        self._start = time.monotonic()
        self._sent = False
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: TaskGroup | None = None
        self._busy = False
        self._over = False

    def report(self, text: str) -> None:
        if self._over:
            return  # a tool that outlives its caller goes on to report
        if text and not self._batch.characters and not self._busy:
            self._set_timer(max(GATHER, self._last_sent + WINDOW - time.monotonic()))
        self._batch.feed(text)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends while the block runs. What is left at its end is sent where the caller counts on it."""
        async with anyio.create_task_group() as self._tasks:
            self._set_timer(HEARTBEAT)
            try:
                yield
            finally:
                self._over = True
                self._clear_timer()
            if self._busy:  # to cancel costs, even where there is nothing to cancel
                self._tasks.cancel_scope.cancel()
        if self._batch.characters and (self._flush or self._sent):
            await self._send_batch()

    def _set_timer(self, seconds: float) -> None:
        self._clear_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        if self._tasks is not None:
            self._busy = True
            self._tasks.start_soon(self._work)

    async def _work(self) -> None:
        if self._batch.characters:
            await self._send_batch()
        else:
            seconds = time.monotonic() - self._start
            await self._beat(f"still running ({seconds:.0f} s)", seconds)
        self._busy = False
        if not self._over:  # what was sent just as the tool ended is not cancelled any more
            self._set_timer(WINDOW if self._batch.characters else HEARTBEAT)

    async def _send_batch(self) -> None:
        text = self._batch.text()
        self._batch = Cap(_BATCH_CAP)
        self._sent, self._last_sent = True, time.monotonic()
        await self._send(text, time.monotonic() - self._start)
