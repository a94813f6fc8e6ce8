"""`cubicle serve` in a process that counts how long its event loop was held up, for the tests alone.

A turn of the loop that comes late because the machine had no processor free is not the service's doing: the kernel says
how long the thread waited for one (`schedstat`), and for how long a host took the processors away (`steal` of /proc/stat);
both are taken off.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

import cubicle.app
from cubicle.cli import main

TICK = 0.02
_STOLEN = "stolen"


def waited_for_processor(pid: int | str = "self", thread: str = "") -> float:
    """Seconds that a process's main thread, or another one, was ready to run and could not."""
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat" if thread else f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def all_waited(pid: int | str = "self") -> dict[str, float]:
    """Of each thread; the main one is the first. And what the host of a virtual machine took from all processors."""
    waited = {thread: waited_for_processor(pid, thread) for thread in os.listdir(f"/proc/{pid}/task")}
    return {**waited, _STOLEN: _stolen()}


def _stolen() -> float:
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def waited_since(before: dict[str, float], now: dict[str, float]) -> float:
    """Seconds that the main thread waited for a processor, or one did that may have held the interpreter's lock, and
    those that a host took."""
    waited = [then - before.get(thread, 0.0) for thread, then in now.items() if thread != _STOLEN]
    return max(waited, default=0.0) + now[_STOLEN] - before[_STOLEN]


async def watch(path: str) -> None:
    """Write down every turn of the loop that came late: when, and by how much."""
    with open(path, "a", buffering=1) as file:
        while True:
            began, before = time.monotonic(), all_waited()
            await asyncio.sleep(TICK)
            late = time.monotonic() - began - TICK
            if late > 0.05:
                late -= waited_since(before, all_waited())
            if late > 0.05:
                file.write(json.dumps({"at": time.monotonic(), "seconds": round(late, 3)}) + "\n")


def install(path: str) -> None:
    """Watch the loop for as long as the service runs."""
    running: Any = cubicle.app.running

    @asynccontextmanager
    async def watched(settings: Any, process: Any = None) -> AsyncIterator[Starlette]:
        async with running(settings, process) as app:
            task = asyncio.create_task(watch(path))
            yield app
            task.cancel()

    cubicle.app.running = watched


if __name__ == "__main__":
    install(sys.argv.pop(1))
    main()
