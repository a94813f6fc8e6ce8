"""Pass bytes both ways until both sides are done."""

from __future__ import annotations

import asyncio

from cubicle.sandbox.egress.pipe import CHUNK, Pipe


class Idle:
    """A time limit that begins anew with every byte: work inside `async with idle.limit`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.limit = asyncio.timeout(seconds)

    def touch(self) -> None:
        if not self.limit.expired():
            self.limit.reschedule(self._loop.time() + self._seconds)


async def relay(inside: Pipe, outside: Pipe) -> None:
    """Both directions at once; raises what broke one of them."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(inside, outside))
            group.create_task(_pump(outside, inside))
    except ExceptionGroup as broken:
        raise broken.exceptions[0] from None


async def _pump(source: Pipe, sink: Pipe) -> None:
    while chunk := await source.read(CHUNK):
        await sink.write(chunk)
    await sink.write_eof()
