"""What a caller sees while a tool runs: its output in batches, and a sign of life when there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from cubicle.tools.output import Cap

WINDOW = 0.1
GATHER = 0.05
"""How long output waits for more of it: most commands end within that time, and their answer says it all."""
HEARTBEAT = 15.0
_BATCH_CAP = 16_000

Send = Callable[[str, float], Awaitable[None]]
"""Sends one batch to the caller: the text, and the seconds since the start."""


class Followed(Protocol):
    """What is followed: a call, until it is settled."""

    @property
    def is_settled(self) -> bool: ...

    def on_settled(self, tell: Callable[[], None]) -> None: ...

    def forget_on_settled(self, tell: Callable[[], None]) -> None: ...


class ProgressStream:
    """Gathers output without ever waiting, and sends it after `GATHER` seconds, but at most every `WINDOW` seconds.

    A caller that reads slowly gets fewer and larger batches, capped in the middle; the command is not held up.
    """

    def __init__(self, send: Send, beat: Send, *, flush: bool) -> None:
        """`flush`: the caller counts on what is left at the end."""
        self._send = send
        self._beat = beat
        self._flush = flush
        self._batch = Cap(_BATCH_CAP)
        self._start = time.monotonic()
        self._gathering_since = 0.0
        self._sent = False
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._due = False
        self._over = False

    def report(self, text: str) -> None:
        if self._over:
            return  # a tool that outlives its caller goes on to report
        if text and not self._batch.characters:
            self._gathering_since = time.monotonic()
            self._batch.feed(text)
            if self._waiting is not None:
                self._set_timer()
        else:
            self._batch.feed(text)

    async def until(self, call: Followed) -> None:
        """Send until the call is settled; then what is left, where the caller counts on it. A batch that is being sent
        then is sent to its end."""
        call.on_settled(self._wake)
        try:
            while not call.is_settled:
                await self._next()
                if self._due and not call.is_settled:
                    await self._send_due()
        finally:
            self._over = True
            call.forget_on_settled(self._wake)
        if self._batch.characters and (self._flush or self._sent):
            await self._send_batch()

    async def _next(self) -> None:
        """Wait until something is to be sent, or the call is settled."""
        self._due = False
        self._waiting = asyncio.get_running_loop().create_future()
        self._set_timer()
        try:
            await self._waiting
        finally:
            self._waiting = None
            self._clear_timer()

    def _set_timer(self) -> None:
        self._clear_timer()
        seconds = HEARTBEAT
        if self._batch.characters:
            seconds = max(self._gathering_since + GATHER, self._last_sent + WINDOW) - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._fire)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._due = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _send_due(self) -> None:
        if self._batch.characters:
            await self._send_batch()
        else:
            seconds = time.monotonic() - self._start
            await self._beat(f"still running ({seconds:.0f} s)", seconds)

    async def _send_batch(self) -> None:
        text = self._batch.text()
        self._batch = Cap(_BATCH_CAP)
        self._sent, self._last_sent = True, time.monotonic()
        await self._send(text, time.monotonic() - self._start)
