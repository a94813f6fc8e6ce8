"""A member that leaves a chat and is asked for it at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.members import disk_records
from cubicle.members.disk_records import DiskRecords
from cubicle.members.owners import Owners

CHAT = Chat("left")


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await asyncio.to_thread(disk_records.prepare, tmp_path)


async def test_a_chat_that_is_being_left_is_taken_again_when_all_is_written_and_stays_taken(folder: Path) -> None:
    """Else its row would go while it is used, and another member would take it as well."""
    records = DiskRecords(folder, 1)
    (await records.open()).close()
    owners, steps, go = Owners(records), list[str](), asyncio.Event()

    async def give(digest: str) -> None:
        steps.append("gives")
        await go.wait()
        steps.append("has given")

    async def read(digest: str) -> None:
        steps.append("reads")

    try:
        assert await owners.place(CHAT) is None
        owners.give, owners.read = give, read
        leaving = asyncio.create_task(owners.release([CHAT.digest]))
        await asyncio.sleep(0)
        assert not owners.owns(CHAT.digest)
        taking = [asyncio.create_task(owners.place(CHAT)), asyncio.create_task(owners.claim_one(CHAT.digest))]
        done, _ = await asyncio.wait(taking, timeout=0.2)
        assert not done
        go.set()
        await leaving
        assert (await asyncio.gather(*taking))[0] is None
        assert steps[:3] == ["gives", "has given", "reads"]
        assert owners.owns(CHAT.digest)
        found = await records.owner(CHAT.digest)
        assert found is not None
        assert found.holder == records.name
    finally:
        await records.close()


async def test_what_cannot_be_written_is_its_own_again(folder: Path) -> None:
    records = DiskRecords(folder, 1)
    (await records.open()).close()
    owners = Owners(records)

    async def give(digest: str) -> None:
        raise OSError("no space")

    try:
        assert await owners.place(CHAT) is None
        owners.give = give
        with pytest.raises(OSError, match="no space"):
            await owners.release([CHAT.digest])
        assert await owners.place(CHAT) is None
        assert owners.owns(CHAT.digest)
    finally:
        await records.close()
