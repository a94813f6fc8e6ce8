"""A guest that offers descriptors, and a look at whether any is left open."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cubicle.guest import wire
from cubicle.machine.connection import GuestLink
from cubicle.machine.machine import Machine
from tests.support.frames import message

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


async def machine_with(reach: Callable[[], socket.socket]) -> tuple[Machine, socket.socket]:
    """A machine whose guest says that it hands sockets over, and that guest's end of the line."""
    ours, guest = socket.socketpair()
    for end in (ours, guest):
        end.setblocking(False)

    async def connect() -> socket.socket:
        sock = reach()
        sock.setblocking(False)
        return sock

    machine = Machine("m", await GuestLink.over(ours), None, connect)
    loop = asyncio.get_running_loop()
    asking = asyncio.ensure_future(machine.hello())
    await loop.sock_recv(guest, 65536)
    await loop.sock_sendall(guest, message(1, wire.END, version=wire.NEWEST_VERSION, hands=True))
    await asking
    return machine, guest
