"""Memory that is free goes back to the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, gc
from cubicle import heap
gc.disable()
heap._SECONDS = 0.05
heap.keep_small()

class Holder:
    def __init__(self):
        self.me, self.text = self, "a" * 20_000_000

async def main():
    before = heap._resident()
    async with heap.kept_small():
        await asyncio.sleep(0.2)
        small = [bytes(500) for _ in range(200_000)]
        kept = small[::1000]
        for _ in range(5):
            Holder()  # only the collector finds it
        assert heap._resident() > before + 150_000_000
        del small
        for _ in range(200):
            await asyncio.sleep(0.05)
            if heap._resident() < before + 40_000_000:
                return
    raise SystemExit(f"{(heap._resident() - before) / 1e6:.0f} MB more than before")

asyncio.run(main())
"""


def test_a_flood_leaves_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
