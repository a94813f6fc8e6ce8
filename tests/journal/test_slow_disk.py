"""The journal on a disk that is slow, or does not answer for a while."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal
from cubicle.journal.shared import SharedJournal
from cubicle.journal.verify import verify

CHAT, OTHER = Chat("slow"), Chat("other")
_WAIT = 60.0


class Disk:
    """Writes of the journal wait while it is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self.full_at = 0
        """Which write, counted from the first, finds no room."""
        self._free = threading.Event()
        self._free.set()
        self._reached = threading.Event()
        self._write = os.pwritev
        monkeypatch.setattr(os, "pwritev", self._pwritev)

    def _pwritev(self, fd: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        self.writes += 1
        self._reached.set()
        number = self.writes
        assert self._free.wait(_WAIT)
        if number == self.full_at:
            raise OSError(errno.ENOSPC, "full")
        return self._write(fd, buffers, offset, flags)

    async def hold(self, journal: Journal) -> asyncio.Future[bool]:
        """From now on it does not answer, and the thread waits for it with an entry of another chat."""
        self._reached.clear()
        self._free.clear()
        journal.record(OTHER, "call", {})
        held = asyncio.ensure_future(journal.settle(OTHER))
        await asyncio.to_thread(self._reached.wait, _WAIT)
        return held

    def go_on(self) -> None:
        self._free.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_what_ends_while_the_disk_is_at_work_is_one_write_a_chat(tmp_path: Path, disk: Disk) -> None:
    async with asyncio.timeout(_WAIT), Journal(tmp_path) as journal:
        held = await disk.hold(journal)
        waiting = []
        for number in range(50):
            journal.record(CHAT, "end", {"call": str(number)})
            waiting.append(asyncio.ensure_future(journal.settle(CHAT)))
        await asyncio.sleep(0)
        assert not any(one.done() for one in (held, *waiting)), "it was answered before it was on disk"
        before = disk.writes
        disk.go_on()
        assert await held
        assert all(await asyncio.gather(*waiting))
        assert disk.writes - before == 1
        assert [entry.fields["call"] for entry in await journal.entries(CHAT)] == [str(n) for n in range(50)]
    assert verify(tmp_path / CHAT.digest).problems == []


async def test_a_removed_chat_that_is_begun_anew_behind_a_slow_disk_has_only_what_is_new(
    tmp_path: Path, disk: Disk
) -> None:
    async with asyncio.timeout(_WAIT), Journal(tmp_path) as journal:
        journal.record(CHAT, "call", {"call": "old"})
        assert await journal.settle(CHAT)
        held = await disk.hold(journal)
        journal.record(CHAT, "end", {"call": "old"})
        first = asyncio.ensure_future(journal.settle(CHAT))
        await asyncio.sleep(0)
        journal.forget(CHAT)
        assert journal.record(CHAT, "call", {"call": "new"}) == 1
        second = asyncio.ensure_future(journal.settle(CHAT))
        await asyncio.sleep(0)
        disk.go_on()
        assert all(await asyncio.gather(held, first, second))
        assert [entry.fields for entry in await journal.entries(CHAT)] == [{"call": "new"}]
    assert verify(tmp_path / CHAT.digest).problems == []


async def test_what_finds_no_room_behind_a_release_is_missing_with_a_note(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.journal.writer._RETRY_SECONDS", 0.0)
    async with asyncio.timeout(_WAIT), Journal(tmp_path) as journal:
        journal.record(CHAT, "call", {"call": "first"})
        assert await journal.settle(CHAT)
        held = await disk.hold(journal)
        journal.release(CHAT)
        journal.record(CHAT, "call", {"call": "lost"})
        lost = asyncio.ensure_future(journal.settle(CHAT))
        await asyncio.sleep(0)
        disk.full_at = disk.writes + 1
        disk.go_on()
        assert await held
        assert not await lost
        journal.record(CHAT, "call", {"call": "last"})
        assert await journal.settle(CHAT)
    found = verify(tmp_path / CHAT.digest)
    assert found.problems == []
    assert found.lines == 3  # one says what is missing


async def test_a_disk_that_does_not_answer_is_waited_for_only_so_long(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cubicle.journal.journal._TIMEOUT", 0.3)
    async with asyncio.timeout(_WAIT), Journal(tmp_path) as journal:
        held = await disk.hold(journal)
        journal.record(CHAT, "call", {"call": "a"})
        assert not await journal.settle(CHAT)
        assert not await held
        for _ in range(1_000):  # no call waits any more, and nothing is handed over
            journal.record(CHAT, "end", {"call": "a"})
            journal.hurry(CHAT)
            assert not await journal.settle(CHAT)
        assert len(journal._in_flight) == 2
        assert caplog.text.count("does not answer") == 1
        disk.go_on()
        while not await journal.settle(CHAT):
            await asyncio.sleep(0.01)
        assert len(await journal.entries(CHAT, limit=2_000)) == 1_001
    assert verify(tmp_path / CHAT.digest).problems == []


async def test_what_was_in_time_is_waited_for_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The time counts from when an entry is handed over, however long others had been under way."""
    monkeypatch.setattr("cubicle.journal.journal._TIMEOUT", 1.0)
    async with asyncio.timeout(_WAIT), Journal(tmp_path) as journal:
        for _ in range(3):
            held = await disk.hold(journal)
            await asyncio.sleep(0.6)
            disk.go_on()
            assert await held
        assert "does not answer" not in caplog.text
        held = await disk.hold(journal)
        assert not await held
        disk.go_on()


async def test_a_journal_that_was_given_away_unwritten_does_not_hold_up_the_others(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.journal.journal._TIMEOUT", 0.3)
    async with asyncio.timeout(_WAIT), SharedJournal(tmp_path) as journal:
        for chat in (CHAT, OTHER):
            await journal.take(chat.digest)
        held = await disk.hold(journal)
        journal.record(CHAT, "note", {})
        await journal.give(CHAT.digest)
        assert not await held
        disk.go_on()
        journal.record(OTHER, "note", {})
        while not await journal.settle(OTHER):
            await asyncio.sleep(0.01)
        assert CHAT.digest not in journal._heads
        assert len(await journal.entries(OTHER)) == 2


async def test_no_tenant_takes_all_the_room_in_front_of_a_slow_disk(tmp_path: Path, disk: Disk) -> None:
    loud = Chat("loud", "acme")
    async with asyncio.timeout(_WAIT), Journal(tmp_path, limit=32 << 20) as journal:
        held = await disk.hold(journal)
        for number in range(16):
            journal.keep_blob(loud, bytes([number]) * (8 << 20))
        for size in (200_000, 2_000, 0):
            for _ in range(200):
                journal.record(loud, "end", {"text": "x" * size})
        journal.record(CHAT, "call", {"call": "quiet"})
        disk.go_on()
        assert await held
        assert await journal.settle(CHAT)
        assert [entry.fields for entry in await journal.entries(CHAT)] == [{"call": "quiet"}]


async def test_pictures_leave_room_in_front_of_a_slow_disk_for_what_was_done(tmp_path: Path, disk: Disk) -> None:
    loud = Chat("loud", CHAT.tenant)
    async with asyncio.timeout(_WAIT), Journal(tmp_path, limit=32 << 20) as journal:
        held = await disk.hold(journal)
        for size in (1 << 20, 100_000, 2_000):
            for _ in range(50):
                journal.keep_blob(loud, b"x" * size)
        for number in range(500):
            journal.record(CHAT, "call", {"call": str(number)})
        disk.go_on()
        assert await held
        assert await journal.settle(CHAT)
        assert len(await journal.entries(CHAT)) == 500
