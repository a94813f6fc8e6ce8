"""`cubicle serve` in a process that counts how long its event loop was held up, for the tests alone.

A turn of the loop that comes late because the machine had no processor free is not the service's doing: the kernel says
how long the thread waited for one (`schedstat`), and for how long a host took the processors away (`steal` of /proc/stat);
both are taken off.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

import cubicle.app
from cubicle.cli import main
from tests.attacks.processor_waits import all_waited, waited_since

TICK = 0.02


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
