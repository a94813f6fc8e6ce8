"""Moves into a cgroup without waiting: the kernel is made ready for them while a sandbox is put together.

The first process that is moved into a cgroup waits for a grace period of RCU, 4 to 20 ms; one that is moved within the
next 5 ms or so does not. A runtime moves one process for every sandbox, so its wait is done before, beside the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from cubicle.tasks import start_task

_CGROUPS = Path("/sys/fs/cgroup")
_EVERY_SECONDS = 0.004
_MAX_MOVES = 12
"""For one start: on a busy machine, where a start takes longer, the wait counts for little."""


class CgroupMoves:
    """Keeps moves quick while somebody starts a sandbox."""

    def __init__(self) -> None:
        self._kept = False

    @contextlib.asynccontextmanager
    async def quick(self) -> AsyncIterator[None]:
        """A start; moves are quick from a few milliseconds on."""
        if self._kept:  # another start sees to it
            yield
            return
        self._kept, over = True, threading.Event()
        work = start_task(asyncio.to_thread(_keep_quick, over), name="quick moves into cgroups")
        try:
            yield
        finally:
            over.set()
            self._kept = False
            await asyncio.wait({work})


def _keep_quick(over: threading.Event) -> None:
    """Move this process to where it is: nothing changes, and the kernel makes itself ready for more."""
    with contextlib.suppress(OSError, LookupError):
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        paths = {kind: path for _, kind, path in groups}
        kind = "memory" if "memory" in paths else ""
        place = _CGROUPS / kind / paths[kind].lstrip("/") / "cgroup.procs"
        for _ in range(_MAX_MOVES):
            place.write_text("0")
            if over.wait(_EVERY_SECONDS):
                return
