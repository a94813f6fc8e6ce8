"""One chat's journal, written by one process after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cubicle.core.chat import Chat
from cubicle.journal import anchor
from cubicle.journal.journal import Journal
from cubicle.journal.shared import SharedJournal
from cubicle.journal.verify import verify

CHAT, OTHER = Chat("shared"), Chat("other")


async def test_the_next_one_goes_on_where_it_was(tmp_path: Path) -> None:
    async with SharedJournal(tmp_path) as one, SharedJournal(tmp_path) as two:
        await one.take(CHAT.digest)
        assert one.record(CHAT, "note", {"by": "one"}) == 1
        await one.give(CHAT.digest)
        await two.take(CHAT.digest)
        assert two.take_before(CHAT) == 1
        assert two.record(CHAT, "note", {"by": "two"}) == 2
        await two.give(CHAT.digest)
        await one.take(CHAT.digest)
        assert one.record(CHAT, "note", {"by": "one"}) == 3
        assert [entry.fields["by"] for entry in await one.entries(CHAT)] == ["one", "two", "one"]
    assert not verify(tmp_path / CHAT.digest).problems


async def test_the_last_numbers_are_those_of_all(tmp_path: Path) -> None:
    async with SharedJournal(tmp_path) as one, SharedJournal(tmp_path) as two:
        for journal, chat in ((one, CHAT), (two, OTHER)):
            await journal.take(chat.digest)
            journal.record(chat, "note", {})
            await journal.settle(chat)
            await journal._save_numbers()
        assert anchor.peek(tmp_path) == {bytes.fromhex(chat.digest): 1 for chat in (CHAT, OTHER)}
        two.forget(OTHER)
        await two.settle(OTHER)
        await two._save_numbers()
        assert anchor.peek(tmp_path) == {bytes.fromhex(CHAT.digest): 1}
    async with Journal(tmp_path) as alone:
        assert alone.record(CHAT, "note", {}) == 2


async def test_what_comes_late_is_not_written_into_the_journal_of_another(tmp_path: Path) -> None:
    """The end of a call whose chat went to another process just before; it would break the order of the numbers."""
    async with SharedJournal(tmp_path) as one, SharedJournal(tmp_path) as two:
        await one.take(CHAT.digest)
        one.record(CHAT, "note", {"by": "one"})
        await one.give(CHAT.digest)
        await two.take(CHAT.digest)
        two.record(CHAT, "note", {"by": "two"})
        await two.settle(CHAT)
        one.keep_blob(CHAT, b"late")
        assert one.record(CHAT, "note", {"by": "one", "late": True}) == 0
        await one.settle(CHAT)
        assert two.record(CHAT, "note", {"by": "two"}) == 3
        await two.settle(CHAT)
        assert [entry.fields["by"] for entry in await two.entries(CHAT)] == ["one", "two", "two"]
    assert not verify(tmp_path / CHAT.digest).problems


async def test_the_last_number_of_a_chat_that_another_has_by_now_stays(tmp_path: Path) -> None:
    """By it that one notices that the end of the journal is missing."""
    async with SharedJournal(tmp_path) as one, SharedJournal(tmp_path) as two:
        await one.take(CHAT.digest)
        one.record(CHAT, "note", {})
        await one.settle(CHAT)
        await one._save_numbers()
        await one.give(CHAT.digest)
        await two.take(CHAT.digest)
        await two._save_numbers()
        await one._save_numbers()
        assert anchor.peek(tmp_path) == {bytes.fromhex(CHAT.digest): 1}


async def test_the_journal_of_a_chat_that_nobody_has_goes_when_its_sandbox_is_deleted_from_the_trash(
    tmp_path: Path,
) -> None:
    """One process empties the trash for all; it may never have had the chat."""
    async with SharedJournal(tmp_path) as one, SharedJournal(tmp_path) as two:
        for chat in (CHAT, OTHER):
            await two.take(chat.digest)
            two.record(chat, "note", {})
            await two.settle(chat)
        await two._save_numbers()
        await two.give(CHAT.digest)
        one.forget_digest(CHAT.digest)
        await one.settle(CHAT)
        assert not (tmp_path / CHAT.digest).exists()
        async with asyncio.timeout(10):
            while bytes.fromhex(CHAT.digest) in anchor.peek(tmp_path):
                await asyncio.sleep(0.01)
        assert anchor.peek(tmp_path) == {bytes.fromhex(OTHER.digest): 1}
        await two.take(CHAT.digest)
        assert two.record(CHAT, "note", {}) == 1
        await two.settle(CHAT)
        assert [entry.kind for entry in await two.entries(CHAT)] == ["note"]


async def test_what_was_lost_of_a_journal_is_noted(tmp_path: Path) -> None:
    async with SharedJournal(tmp_path) as one:
        await one.take(CHAT.digest)
        for _ in range(3):
            one.record(CHAT, "note", {})
    for path in (tmp_path / CHAT.digest).iterdir():
        path.unlink()
    async with SharedJournal(tmp_path) as two:
        await two.take(CHAT.digest)
        await two.settle(CHAT)
        assert [entry.kind for entry in await two.entries(CHAT)] == ["gap"]
        assert two.record(CHAT, "note", {}) == 4
