"""A program that records entries and says which of them are on disk, until it is killed: keeper.py FOLDER."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal


async def main(folder: Path) -> None:
    chats = [Chat("room-1", "acme"), Chat("room-2", "acme")]
    async with Journal(folder, limit=256 * 1024) as journal:

        async def work(place: int) -> None:
            while True:
                journal.record(chats[place], "call", {"call": "a", "text": "é" * 300})
                number = journal.record(chats[place], "end", {"call": "a"})
                assert await journal.settle(chats[place])
                print(place, number, flush=True)

        await asyncio.gather(work(0), work(1))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
