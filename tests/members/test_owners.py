"""A member that leaves a chat and is asked for it at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.members import disk_records
from cubicle.members.disk_records import DiskRecords
from cubicle.members.owners import Owners
from cubicle.members.records import NoRecords, Ownership

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


class FailingRecords(DiskRecords):
    failures = 0

    async def release(self, epochs: Mapping[str, int]) -> None:
        if self.failures:
            self.failures -= 1
            raise NoRecords("The API server does not answer.")
        await super().release(epochs)


async def test_what_could_not_be_released_is_released_later(folder: Path) -> None:
    """Else nobody else could take the chat before this member ends, and this one, which ends, does not take it."""
    records = FailingRecords(folder, 1)
    (await records.open()).close()
    owners, again = Owners(records), Chat("again")
    try:
        for chat in (CHAT, again):
            assert await owners.place(chat) is None
        records.failures = 1
        with pytest.raises(NoRecords):
            await owners.release([CHAT.digest, again.digest])
        assert await owners.place(again) is None  # it was asked for it meanwhile: it stays taken
        owners.leaving = True
        await owners.release([])
        assert await records.owner(CHAT.digest) is None
        assert await records.owner(again.digest) == Ownership(records.name, 2)
    finally:
        await records.close()


async def test_a_record_that_names_no_chat_keeps_no_member_from_its_start(folder: Path) -> None:
    """A Lease from which somebody took the annotation, say."""
    records = DiskRecords(folder, 1)
    (await records.open()).close()
    owners = Owners(records)
    try:
        assert await owners.claim(["", "no digest", CHAT.digest]) == {CHAT.digest}
        await owners.take_unowned(["", "no digest"])
        assert owners.owned() == [CHAT.digest]
    finally:
        await records.close()


class SlowReleases(DiskRecords):
    async def release(self, epochs: Mapping[str, int]) -> None:
        await asyncio.sleep(3600)


async def test_nobody_waits_until_chats_without_a_sandbox_are_released(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster that takes minutes: two requests for each of thousands."""
    monkeypatch.setattr("cubicle.members.owners._MAX_EMPTY", 3)
    records = SlowReleases(folder, 1)
    (await records.open()).close()
    owners = Owners(records)
    owners.keeps = lambda digest: False
    try:
        async with asyncio.timeout(20), owners.watching():
            for number in range(5):
                assert await owners.place(Chat(f"empty-{number}")) is None
            while len(owners.owned()) > 3:
                await asyncio.sleep(0.05)
            assert await owners.place(CHAT) is None
    finally:
        await records.close()


class OneOfTwo(DiskRecords):
    """Two members of one process cannot lock each other out of a file."""

    alive: Sequence[str] = ()

    async def is_alive(self, holder: str) -> bool:
        return holder in (self.name, *self.alive)


async def test_a_chat_that_nobody_asks_for_after_its_member_ended_is_taken(folder: Path) -> None:
    """Else nobody would stop its sandbox when it is idle. The other one believes that the member still has it."""
    first, second = DiskRecords(folder, 1), OneOfTwo(folder, 2)
    left, kept = Owners(first), Owners(second)
    for records in (first, second):
        (await records.open()).close()

    async def chat_of(digest: str) -> Chat | None:
        return CHAT if digest == CHAT.digest else None

    kept.chat_of, digests = chat_of, [CHAT.digest, "f" * 32]
    try:
        assert await left.place(CHAT) is None
        kept._guess(CHAT.digest, first.name)
        second.alive = [first.name]
        await kept.take_unowned(digests)
        assert kept.owned() == []
        await left.release([CHAT.digest])
        await first.close()
        second.alive, kept.leaving = (), True
        await kept.take_unowned(digests)
        assert kept.owned() == []
        kept.leaving = False
        await kept.take_unowned(digests)
        assert kept.owned() == [CHAT.digest]
        assert await second.owner("f" * 32) is None
    finally:
        await second.close()


class WatchedRecords(DiskRecords):
    ended: Sequence[str] = ()

    async def dead(self) -> Sequence[str]:
        return self.ended

    async def bury(self, holder: str) -> None:
        self.ended = ()


async def test_a_chat_whose_sandbox_does_not_answer_keeps_no_others_waiting(folder: Path) -> None:
    """Those of a member whose node was lost, say: the sandboxes that were there hang up on nobody."""
    records, dead, other = WatchedRecords(folder, 1), DiskRecords(folder, 2), DiskRecords(folder, 3)
    chats = {chat.digest: chat for chat in (Chat(f"chat-{number}") for number in range(4))}
    hung = list[Chat]()

    async def taken(chat: Chat) -> None:
        if not hung:
            hung.append(chat)
            await asyncio.Event().wait()

    async def chat_of(digest: str) -> Chat | None:
        return chats[digest]

    for each in (records, dead):
        (await each.open()).close()
    owners = Owners(records)
    owners.taken, owners.chat_of = taken, chat_of
    try:
        for digest in chats:
            await dead.take(digest, None)
        await dead.close()
        records.ended = [dead.name]
        async with asyncio.timeout(20), owners.watching():
            while len(owners.owned()) < len(chats) - 1:
                await asyncio.sleep(0.05)
            (await other.open()).close()
            lost = owners.owned()[0]
            await other.take(lost, await records.owner(lost))
            records.lapsed = True
            while owners.owns(lost):
                await asyncio.sleep(0.05)
    finally:
        for task in owners._settling.values():
            task.cancel()
        await other.close()
        await records.close()


class SlowRecords(DiskRecords):
    slow: asyncio.Event | None = None

    async def owner(self, digest: str) -> Ownership | None:
        if self.slow is not None:
            await self.slow.wait()
        return await super().owner(digest)


@pytest.mark.parametrize("moment", ["its chat is looked for", "it is taken"])
async def test_a_dead_members_chat_that_somebody_asks_for_at_the_same_moment_stays_taken(
    folder: Path, moment: str
) -> None:
    """Nothing is written down of it, so nobody is to own it; but now it is used, and another member would take it."""
    records, dead = SlowRecords(folder, 1), DiskRecords(folder, 2)
    (await records.open()).close()
    owners, looks, go = Owners(records), asyncio.Event(), asyncio.Event()

    async def chat_of(digest: str) -> Chat | None:
        looks.set()
        if moment == "its chat is looked for":
            await go.wait()
        else:
            records.slow = go
        return None

    owners.chat_of = chat_of
    try:
        (await dead.open()).close()
        await dead.take(CHAT.digest, None)
        await dead.close()
        taking_over = asyncio.create_task(owners._take_over(dead.name))
        await looks.wait()
        asking = asyncio.create_task(owners.place(CHAT))
        if moment == "its chat is looked for":
            await asking
        await asyncio.sleep(0)
        go.set()
        await taking_over
        assert await asking is None
        assert owners.owns(CHAT.digest)
        assert await records.owned_by(records.name) == [CHAT.digest]
        await owners._take_over(dead.name)
    finally:
        await records.close()
