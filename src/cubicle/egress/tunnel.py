"""Pass bytes both ways until both sides are done, or nothing moves any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cubicle.egress.streams import CHUNK, Pipe


class Idle:
    """Cuts what is inside `watch` when nothing moves for so many seconds, or for half as many again at most."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._moved = self._loop.time()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        try:
            async with self._limit:
                self._look()
                yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def touch(self) -> None:
        """Something moved. It is only noted: to move a timer for every piece costs more than to pass it on."""
        self._moved = self._loop.time()

    def hurry(self, seconds: float) -> None:
        """Have less patience from now on."""
        self._seconds = min(seconds, self._seconds)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        if self._loop.time() - self._moved >= self._seconds:
            self._limit.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_later(self._seconds / 2, self._look)


async def relay(inside: Pipe, outside: Pipe, on_silence: Callable[[], None]) -> None:
    """Both directions at once; raises what broke one of them. `on_silence`: the caller has no more to say."""
    hears, has_ended = True, False
    answers = interrupted = False

    async def up() -> None:
        nonlocal hears, interrupted
        while chunk := await inside.read(CHUNK):
            interrupted = answers
            if hears and not (hears := await heard(outside, chunk)):
                on_silence()
            if has_ended and not hears:
                return
        if hears:
            await outside.write_eof()
            on_silence()

    try:
        async with asyncio.TaskGroup() as group:
            going = group.create_task(up())
            try:
                while chunk := await outside.read(CHUNK):
                    answers = True
                    await inside.write(chunk)
            except ConnectionResetError:
                # A server that closes before it has read all resets the connection. Breaking off would drop what it
                # said and is on its way to the caller. Where the write meets the reset first, it ends in order, too.
                if not interrupted:
                    raise
                hears = False
            await inside.write_eof()
            has_ended = True
            if not hears:  # what the caller still sends is nobody's
                going.cancel()
    except ExceptionGroup as broken:
        raise broken.exceptions[0] from None


async def heard(outside: Pipe, data: bytes) -> bool:
    """Send it; False when the server takes no more. What it has said before that is there to be read all the same."""
    try:
        await outside.write(data)
    except OSError:
        return False
    return True
