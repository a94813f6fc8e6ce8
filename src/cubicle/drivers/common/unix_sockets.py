"""Unix sockets at paths of any length: the kernel takes 107 bytes, and a path through /proc/self/fd is always short."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cubicle.machine.errors import NotRunning

_BACKLOG = 1024
_PAUSE = 0.005


def listen(path: Path) -> socket.socket:
    """A listening socket at a path, where nothing may be yet; only its owner can connect."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(server.fileno(), 0o600)
            server.bind(f"/proc/self/fd/{folder}/{path.name}")
            server.listen(_BACKLOG)
        except OSError:
            server.close()
            raise
        return server
    finally:
        os.close(folder)


async def connect(path: Path, seconds: float) -> socket.socket:
    """A connected, non-blocking socket. Raises OSError; a listener that is too busy gets so many seconds."""
    deadline = time.monotonic() + seconds
    target = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while True:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                client.connect(f"/proc/self/fd/{target}")
            except BlockingIOError:
                client.close()
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_PAUSE)
            except OSError:
                client.close()
                raise
            else:
                return client
    finally:
        os.close(target)


@contextmanager
def not_running() -> Iterator[None]:
    """Turns what keeps a driver from connecting to a guest into NotRunning."""
    try:
        yield
    except BlockingIOError:
        raise NotRunning("The sandbox is up but accepts no connection.") from None
    except OSError:
        raise NotRunning("The sandbox is not up.") from None
