"""A byte stream to a guest that no socket of the host reaches: an `exec` of the guest's relay, pumped to a socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import aiohttp
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError
from aiodocker.stream import Stream

from cubicle.drivers.common.container import GUEST
from cubicle.drivers.docker.config import SOCKET
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_CHUNK = 256 * 1024
_HELLO = b"+"
_STDOUT = 1


class Streams:
    """All the streams that are open, and the tasks that pump them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, container: DockerContainer, seconds: float) -> socket.socket:
        """A connected non-blocking socket, once the relay inside has reached the guest. Raises OSError."""
        try:
            async with asyncio.timeout(seconds):
                command = ["/usr/bin/python3", "-I", "-S", GUEST, "relay", SOCKET, str(seconds)]
                relay = await container.exec(command, stdin=True, user="0:0", workdir="/")
                stream = relay.start()
                await stream.__aenter__()
                try:
                    first = await _hello(stream)
                except BaseException:
                    await stream.close()
                    raise
        except (DockerError, TimeoutError, aiohttp.ClientError) as error:
            raise ConnectionRefusedError("the relay in the sandbox did not come up") from error
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        task = start_task(_pump(stream, ours, first), name="guest stream")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return theirs

    async def close(self) -> None:
        """Cut them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _hello(stream: Stream) -> bytes:
    """The relay says one byte when it has reached the guest; what follows is the guest's."""
    while (message := await stream.read_out()) is not None:
        if message.stream == _STDOUT and message.data:
            if not message.data.startswith(_HELLO):
                break
            return message.data[len(_HELLO) :]
    raise ConnectionRefusedError("the relay in the sandbox ended")


async def _pump(stream: Stream, ours: socket.socket, first: bytes) -> None:
    """Both directions, until one of them ends."""
    loop = asyncio.get_running_loop()

    async def inward() -> None:
        while chunk := await loop.sock_recv(ours, _CHUNK):
            await stream.write_in(chunk)

    async def outward() -> None:
        if first:
            await loop.sock_sendall(ours, first)
        while (message := await stream.read_out()) is not None:
            if message.stream == _STDOUT:
                await loop.sock_sendall(ours, message.data)

    directions = [start_task(inward(), name="guest stream in"), start_task(outward(), name="guest stream out")]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        ended = await asyncio.gather(*directions, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception) and not isinstance(error, OSError | aiohttp.ClientError | RuntimeError):
                log.warning("a stream to a sandbox broke: %s", error)
        ours.close()
        with contextlib.suppress(OSError, AssertionError, aiohttp.ClientError):
            await stream.close()
