"""One program at a time starts, stops or moves a sandbox: the service, or a command of the command line beside it.

The lock is one byte, by the sandbox's name, of one file of this boot. So it ends with its program, leaves nothing
behind, needs no space on the disk, and holds for a sandbox that is only being made.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cubicle.drivers.common.completion import complete
from cubicle.durable import FLOCK
from cubicle.machine.errors import SandboxError

BUSY_SECONDS = 60.0
_POLL_SECONDS = 0.02


@asynccontextmanager
async def only_one_at(file: Path, name: str, seconds: float = BUSY_SECONDS) -> AsyncIterator[None]:
    """Nobody else is within such a block for the same sandbox. Raises SandboxError after so many seconds."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = await complete(asyncio.to_thread(os.open, file, flags, 0o600), os.close)
    try:
        deadline = time.monotonic() + seconds
        while not _taken(lock, name):
            if time.monotonic() >= deadline:
                raise SandboxError("Another program is starting, stopping or removing this sandbox.")
            await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(lock)


def _taken(lock: int, name: str) -> bool:
    """Of the open file, not of this process: two drivers of one program keep each other out, too."""
    byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 2
    try:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True
