"""A guest that offers descriptors, and a look at whether any is left open."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LIMIT = 60.0


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def offering(messages: tuple[tuple[bytes, list[int]], ...]) -> AsyncIterator[socket.socket]:
    """The service's end to a guest that answers with these bytes, each with these descriptors, and hangs up."""
    ours, guest = socket.socketpair()
    for end in (ours, guest):
        end.setblocking(False)

    async def answer() -> None:
        await asyncio.get_running_loop().sock_recv(guest, 65536)
        for data, descriptors in messages:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            with contextlib.suppress(OSError):  # it may hang up on us before the last
                guest.sendmsg([data], rights)
            await asyncio.sleep(0.001)
        guest.close()

    with ours, guest:
        answering = asyncio.ensure_future(answer())
        try:
            async with asyncio.timeout(LIMIT):
                yield ours
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
