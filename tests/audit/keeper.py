"""A program that records and says when, until it is killed: keeper.py FOLDER."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from cubicle.audit.audit import Audit


async def main(folder: Path) -> None:
    async with Audit(folder, b"key" * 11) as audit:
        for number in range(1_000_000):
            audit.record("call", {"call": str(number), "text": "é" * 100})
            print(number, time.monotonic(), flush=True)
            await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
