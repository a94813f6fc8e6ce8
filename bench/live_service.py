"""The service of bench/live.py, in a process of its own: prints its address and its sandbox's network, serves until its
input ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from cubicle.drivers.memory import MemoryDriver
from tests.browser import ground


async def serve(folder: Path) -> None:
    # The memory driver without a network of its own, so that the same ports can be measured directly.
    driver = ground.oci_driver(folder) if sys.argv[2] == "oci" else MemoryDriver(folder)
    async with ground.serving(driver, folder) as service, service.machine("bench") as machine:
        _, network = await machine.output("readlink /proc/self/ns/net")
        sys.stdout.write(f"{service.base} {network.decode().strip()}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
