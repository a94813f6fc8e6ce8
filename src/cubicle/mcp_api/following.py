"""What a caller sees while a tool runs: its output in batches, and a sign of life when there is none."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from cubicle.rules.capping import Cap

WINDOW = 0.1
HEARTBEAT = 15.0
_BATCH_CAP = 16_000

Send = Callable[[str, float], Awaitable[None]]
"""Sends one batch to the caller: the text, and the seconds since the start."""


class Following:
    """Gathers output without ever waiting, and sends it at most every `WINDOW` seconds.

    A caller that reads slowly gets fewer and larger batches, capped in the middle; the command is not held up.
    """

    def __init__(self, send: Send, *, heartbeat: bool, flush: bool) -> None:
        self._send = send
        self._heartbeat = HEARTBEAT if heartbeat else None
        self._flush = flush
        self._batch = Cap(_BATCH_CAP)
        self._waiting = anyio.Event()
        self._start = time.monotonic()
        self._sent = False

    def report(self, text: str) -> None:
        if text:
            self._batch.feed(text)
            self._waiting.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends while the block runs. What is left at its end is sent where the caller counts on it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work)
            yield
            tasks.cancel_scope.cancel()
        if self._batch.characters and (self._flush or self._sent):
            await self._send_batch()

    async def _work(self) -> None:
        while True:
            with anyio.move_on_after(self._heartbeat):
                await self._waiting.wait()
                await anyio.sleep(WINDOW)
            if self._batch.characters:
                await self._send_batch()
            else:
                seconds = time.monotonic() - self._start
                await self._send(f"still running ({seconds:.0f} s)", seconds)

    async def _send_batch(self) -> None:
        text = self._batch.text()
        self._batch = Cap(_BATCH_CAP)
        self._waiting = anyio.Event()
        self._sent = True
        await self._send(text, time.monotonic() - self._start)
