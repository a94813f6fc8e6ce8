"""The service of bench/live.py, in a process of its own: prints its port, serves until its input ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from cubicle.drivers.memory import MemoryDriver
from tests.live import ground


async def serve(folder: Path) -> None:
    # Without a network of its own, so that the same ports can be measured directly.
    options = dict(part.split("=") for part in sys.argv[2:])
    async with ground.serving(MemoryDriver(folder), folder, **options) as service, service.machine("bench"):
        sys.stdout.write(f"{service.base}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
