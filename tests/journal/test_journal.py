"""The journal: what is recorded is on disk, in its order, chained, bounded, and found again by another service."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.journal import anchor, format, reading
from cubicle.journal.chat_files import ChatFiles
from cubicle.journal.format import Chain, Entry
from cubicle.journal.journal import Journal
from cubicle.tasks import start_task

CHAT = Chat("room-1", "acme")
OTHER = Chat("room-2", "acme")


async def _next(following: AsyncIterator[Entry]) -> Entry:
    return await anext(following)


def chain_of(folder: Path, chat: Chat = CHAT) -> Chain:
    """The chain of a chat's lines, each of which must be good."""
    chain = Chain()
    for _, path in reading.segments(folder / chat.digest):
        lines, rest = reading.read_lines(path)
        assert rest == b""
        for text in lines:
            line = format.check(text)
            assert line is not None, text
            chain.add(line, text)
    return chain


async def test_entries_come_back_in_their_order_with_their_numbers(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        assert [journal.record(CHAT, "call", {"call": str(n)}) for n in range(3)] == [1, 2, 3]
        assert journal.record(OTHER, "upload", {"path": "a\x1b[31m\ud800"}) == 1
        assert await journal.settle(CHAT)
        found = await journal.entries(CHAT)
        assert [(entry.number, entry.kind, entry.fields["call"]) for entry in found] == [
            (1, "call", "0"),
            (2, "call", "1"),
            (3, "call", "2"),
        ]
        assert [entry.number for entry in await journal.entries(CHAT, after=1, limit=1)] == [2]
        assert [entry.fields for entry in await journal.entries(OTHER)] == [{"path": "a\x1b[31m\ud800"}]


async def test_what_was_settled_is_there_for_the_next_service(tmp_path: Path) -> None:
    """The first one is never closed: as after a kill -9."""
    first = Journal(tmp_path)
    await first.__aenter__()
    first.record(CHAT, "call", {"call": "a"})
    assert await first.settle(CHAT)
    async with Journal(tmp_path) as journal:
        assert journal.record(CHAT, "call", {"call": "b"}) == 2
        await journal.settle(CHAT)
        assert [entry.fields["call"] for entry in await journal.entries(CHAT)] == ["a", "b"]
    assert chain_of(tmp_path).breaks() == []
    await first.__aexit__()


async def test_what_nobody_waits_for_is_written_soon_and_at_the_end(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        journal.record(CHAT, "lifecycle", {"what": "started"})
        while not reading.read_entries(tmp_path / CHAT.digest):
            await asyncio.sleep(0.01)
        journal.record(CHAT, "lifecycle", {"what": "stopped"})
    assert [entry.fields["what"] for entry in reading.read_entries(tmp_path / CHAT.digest)] == ["started", "stopped"]


async def test_what_is_in_a_hurry_is_written_before_anything_else_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.journal.journal._GATHER_SECONDS", 3600.0)
    async with asyncio.timeout(60), Journal(tmp_path) as journal:
        journal.record(CHAT, "call", {"call": "a"})
        journal.hurry(CHAT)
        while not reading.read_entries(tmp_path / CHAT.digest):
            await asyncio.sleep(0.01)


async def test_what_came_just_now_waits_for_the_end_of_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another chat recorded long ago is no reason to write it: with its end, it is one write."""
    monkeypatch.setattr("cubicle.journal.journal._GATHER_SECONDS", 3600.0)
    async with asyncio.timeout(60), Journal(tmp_path) as journal:
        journal.record(CHAT, "lifecycle", {"what": "started"})
        journal.record(OTHER, "call", {"call": "a"})
        journal._heads[CHAT.digest].since -= 3600.0
        journal._gathered()
        while not reading.read_entries(tmp_path / CHAT.digest):
            await asyncio.sleep(0.01)
        assert not (tmp_path / OTHER.digest).exists()
        monkeypatch.setattr("cubicle.journal.journal._GATHER_SECONDS", 0.01)
        journal._gathered()
        while not reading.read_entries(tmp_path / OTHER.digest):
            await asyncio.sleep(0.01)


async def test_what_was_only_written_is_on_disk_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60), Journal(tmp_path) as journal:
        monkeypatch.setattr(os, "fdatasync", lambda fd: loop.call_soon_threadsafe(synced.set))
        journal.record(CHAT, "call", {"call": "a"})
        journal.hurry(CHAT)
        await synced.wait()


async def test_calls_that_end_together_share_one_sync(tmp_path: Path) -> None:
    chats = [Chat(f"room-{n}") for n in range(20)]
    async with Journal(tmp_path) as journal:
        for chat in chats:
            journal.record(chat, "end", {})
        assert all(await asyncio.gather(*(journal.settle(chat) for chat in chats)))
        assert [len(await journal.entries(chat)) for chat in chats] == [1] * 20


async def test_what_is_closed_to_make_room_is_on_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fdatasync = os.fdatasync

    def sync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fdatasync(fd)

    monkeypatch.setattr("cubicle.journal.writer._MAX_OPEN", 2)
    monkeypatch.setattr(os, "fdatasync", sync)
    chats = [Chat(f"room-{n}") for n in range(6)]
    async with Journal(tmp_path) as journal:
        for chat in chats:
            journal.record(chat, "call", {})
            await journal.entries(chat)  # written, and not yet on disk
        assert all(await asyncio.gather(*(journal.settle(chat) for chat in chats)))
        files = [path.stat().st_ino for chat in chats for _, path in reading.segments(tmp_path / chat.digest)]
    assert len(files) == 6
    assert synced >= set(files)


async def test_a_journal_stays_within_its_bound_and_says_what_it_dropped(tmp_path: Path) -> None:
    limit = 256 * 1024
    async with Journal(tmp_path, limit=limit) as journal:
        for n in range(2000):
            journal.record(CHAT, "call", {"call": str(n), "text": "x" * 400})
            if n % 50 == 0:
                await journal.settle(CHAT)
        await journal.settle(CHAT)
        found = await journal.entries(CHAT, limit=10_000)
    assert sum(path.stat().st_size for path in (tmp_path / CHAT.digest).iterdir()) <= limit
    assert found[-1].fields["call"] == "1999"
    [dropped] = chain_of(tmp_path).breaks()
    assert dropped.first == 1
    assert "JOURNAL_MB" in dropped.noted
    assert [entry for entry in found if entry.kind == "gap"][-1].fields["last"] == dropped.last
    async with Journal(tmp_path, limit=limit) as journal:
        assert journal.record(CHAT, "call", {}) == 2001
        await journal.settle(CHAT)
    assert [broken.noted != "" for broken in chain_of(tmp_path).breaks()] == [True]


async def test_a_call_is_found_by_its_identity_while_it_runs_and_after_a_restart(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        assert await journal.find_call(CHAT, "key-1") is None
        journal.record(CHAT, "call", {"call": "a", "identity": "key-1", "tool": "bash_tool"})
        running = await journal.find_call(CHAT, "key-1")
        assert running is not None
        assert running.end is None
        journal.record(CHAT, "end", {"call": "a", "ending": "done"})
        ended = await journal.find_call(CHAT, "key-1")
        assert ended is not None
        assert ended.end is not None
        assert ended.end.fields["ending"] == "done"
        assert await journal.find_call(OTHER, "key-1") is None
    async with Journal(tmp_path) as journal:
        first, second = await asyncio.gather(journal.find_call(CHAT, "key-1"), journal.find_call(CHAT, "key-1"))
        assert first == second == ended
        journal.record(CHAT, "call", {"call": "b", "identity": "key-1"})
        again = await journal.find_call(CHAT, "key-1")
        assert again is not None
        assert again.begin.fields["call"] == "b"
        assert again.end is None


async def test_the_end_of_an_older_call_is_not_taken_for_that_of_a_newer_one_of_its_identity(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        assert await journal.find_call(CHAT, "k") is None
        for kind, call in (("call", "a"), ("call", "b"), ("end", "b"), ("end", "a")):
            journal.record(CHAT, kind, {"call": call, "identity": "k", "text": f"of {call}"})
        found = await journal.find_call(CHAT, "k")
        assert found is not None
        assert found.end is not None
        assert (found.begin.fields["text"], found.end.fields["text"]) == ("of b", "of b")


async def test_a_call_is_found_by_its_end_alone_but_not_that_of_a_removed_sandbox(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        for call in ("a", "b"):
            journal.record(CHAT, "end", {"call": call, "identity": "k", "seconds": 2.0, "begun": False})
        journal.record(CHAT, "call", {"call": "c", "identity": "gone"})
        journal.record(CHAT, "lifecycle", {"what": "removed"})
        journal.record(CHAT, "end", {"call": "c", "identity": "gone"})
        journal.record(CHAT, "end", {"call": "d", "identity": "k2", "seconds": 2.0})
    for _ in range(2):
        async with Journal(tmp_path) as journal:
            assert await journal.find_call(CHAT, "gone") is None
            assert await journal.find_call(CHAT, "k") is None
            found = await journal.find_call(CHAT, "k2")
            assert found is not None
            assert found.end is not None
            assert found.begin.fields == found.end.fields
            assert found.begin.at == pytest.approx(found.end.at - 2.0)
            journal.record(CHAT, "end", {"call": "e", "identity": "k2", "seconds": 2.0})
            again = await journal.find_call(CHAT, "k2")
            assert again is not None
            assert again.begin.fields["call"] == "e"


async def test_blobs_are_kept_with_the_journal_and_go_with_it(tmp_path: Path) -> None:
    limit = 256 * 1024
    async with Journal(tmp_path, limit=limit) as journal:
        first = journal.keep_blob(CHAT, b"picture" * 1000)
        journal.record(CHAT, "end", {"answer": [{"blob": first}]})
        assert await journal.blob(CHAT, first) == b"picture" * 1000
        assert await journal.blob(CHAT, "0" * 64) is None
        for n in range(40):
            newest = journal.keep_blob(CHAT, bytes([n]) * 20_000)
            journal.record(CHAT, "end", {"answer": [{"blob": newest}]})
        await journal.settle(CHAT)
        assert await journal.blob(CHAT, first) is None
        assert await journal.blob(CHAT, newest) == bytes([39]) * 20_000
        size = sum(path.stat().st_size for path in (tmp_path / CHAT.digest).iterdir())
        assert size <= limit + 20_000
        too_large = journal.keep_blob(CHAT, b"x" * limit)
        assert await journal.blob(CHAT, too_large) is None


def test_the_blobs_of_what_is_dropped_are_counted_once(tmp_path: Path) -> None:
    limit = 256 * 1024
    files = ChatFiles(tmp_path / CHAT.digest, limit)
    files.open()
    for n in range(60):
        files.keep_blob(hashlib.sha256(bytes([n])).hexdigest(), bytes([n]) * (60_000 if n % 20 == 0 else 500))
        files.append([(n + 1, format.body(1.0, "end", {"text": "x" * 8_000}))], sync=False)
        assert files.size <= limit
    files.close()


async def test_a_forgotten_chat_leaves_nothing_and_begins_anew(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        journal.record(CHAT, "call", {"call": "a", "identity": "k"})
        await journal.settle(CHAT)
        journal.record(CHAT, "call", {"call": "b"})
        journal.forget(CHAT)
        assert await journal.entries(CHAT) == []
        assert not (tmp_path / CHAT.digest).exists()
        assert await journal.find_call(CHAT, "k") is None
        assert journal.record(CHAT, "call", {"call": "c"}) == 1
        assert [entry.fields["call"] for entry in await journal.entries(CHAT)] == ["c"]
    assert chain_of(tmp_path).breaks() == []


async def test_a_chat_may_go_while_its_calls_are_looked_up(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        journal.record(CHAT, "call", {"call": "a", "identity": "k"})
        looking = start_task(_found(journal), name="look")
        await asyncio.sleep(0)
        journal.forget(CHAT)
        await looking
        assert await journal.find_call(CHAT, "k") is None


async def _found(journal: Journal) -> None:
    await journal.find_call(CHAT, "k")


async def test_the_journal_of_a_forgotten_chat_is_not_missed_after_a_kill(tmp_path: Path) -> None:
    async with asyncio.timeout(60), Journal(tmp_path) as journal:
        for chat in (CHAT, OTHER):
            journal.record(chat, "call", {})
            await journal.settle(chat)
        journal.forget(OTHER)
        while anchor.peek(tmp_path) != {bytes.fromhex(CHAT.digest): 1}:
            await asyncio.sleep(0.01)
        journal.forget(CHAT)
        while anchor.peek(tmp_path):
            await asyncio.sleep(0.01)


async def test_who_follows_gets_what_is_there_and_what_comes(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        journal.record(CHAT, "call", {"call": "a"})
        following = journal.follow(CHAT)
        assert (await anext(following)).number == 1
        coming = start_task(_next(following), name="follow")
        await asyncio.sleep(0)
        journal.record(CHAT, "call", {"call": "b"})
        assert (await coming).number == 2


async def test_who_follows_a_long_journal_gets_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.journal.journal._PAGE", 10)
    async with asyncio.timeout(60), Journal(tmp_path) as journal:
        for n in range(35):
            journal.record(CHAT, "call", {"call": str(n)})
        following = journal.follow(CHAT)
        assert [(await anext(following)).number for _ in range(35)] == list(range(1, 36))


async def test_an_entry_that_is_too_long_is_shortened_and_says_so(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        journal.record(CHAT, "call", {"text": "x" * 1_000_000, "small": "y"})
        journal.record(CHAT, "call", {"texts": ["é" * 3_000] * 500})
        one, two = await journal.entries(CHAT)
    assert one.fields == {"text": "x" * 2_000, "small": "y", "shortened": 1_000_023}
    assert int(str(two.fields["shortened"])) > 3_000 * 500


@pytest.mark.parametrize("most", [1 << 20, 100])
async def test_what_waits_for_a_sandbox_is_bounded_and_goes_with_the_last_call(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.journal.journal._MAX_HELD", most)
    async with Journal(tmp_path) as journal:
        journal.attend(lambda: None)
        for kind, call in (("call", "a"), ("call", "b"), ("end", "a")):
            journal.record(CHAT, kind, {"call": call, "text": "x" * 200}, hold=True)
        assert await journal.settle(CHAT)
        assert (tmp_path / CHAT.digest).exists() == (most == 100)
        journal.record(CHAT, "end", {"call": "b"}, hold=True)
        for kind in ("call", "output", "end", "call"):
            journal.record(OTHER, kind, {"call": "c"}, hold=True)
        with journal.with_sandbox(OTHER):
            assert await journal.settle(OTHER)
            assert [entry.number for entry in await journal.entries(OTHER)][-1] in (1, 4)
    assert (tmp_path / CHAT.digest).exists() == (most == 100)
    assert chain_of(tmp_path, OTHER).breaks() == []


async def test_a_journal_without_size_keeps_nothing(tmp_path: Path) -> None:
    async with Journal(tmp_path / "journal", limit=0) as journal:
        journal.record(CHAT, "call", {"identity": "k"})
        assert await journal.settle(CHAT)
        assert await journal.find_call(CHAT, "k") is None
        assert await journal.entries(CHAT) == []
    assert not (tmp_path / "journal").exists()


def test_a_changed_byte_is_found_wherever_it_is() -> None:
    text, _ = format.line(7, format.body(1.5, "call", {"tool": "bash_tool", "n": [1, None, True]}), format.NO_HASH)
    line = text[:-1]
    assert format.check(line) is not None
    for place in range(len(line)):
        changed = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
        assert format.check(changed) is None, changed
    assert json.loads(line)["n"] == 7


async def test_an_entry_that_follows_a_removal_from_outside_at_once_is_kept(tmp_path: Path) -> None:
    """`cubicle rm --now` beside the service removes the files; the next call may come in the same moment."""
    async with Journal(tmp_path) as journal:
        for number in range(5):
            journal.record(CHAT, "call", {"call": f"before-{number}"})
            await journal.settle(CHAT)
            shutil.rmtree(tmp_path / CHAT.digest)
            journal.record(CHAT, "call", {"call": f"after-{number}"})
            assert await journal.settle(CHAT)
            assert (await journal.entries(CHAT))[-1].fields["call"] == f"after-{number}"


async def test_what_the_command_line_deletes_from_the_trash_is_not_missed(tmp_path: Path) -> None:
    """Its files and its number; those of a chat whose files alone are gone are missed."""
    async with Journal(tmp_path) as journal:
        for chat in (CHAT, OTHER):
            journal.record(chat, "call", {})
            await journal.settle(chat)
            journal.release(chat)
            await journal.settle(chat)
        await journal._save_numbers()
        for chat in (CHAT, OTHER):
            shutil.rmtree(tmp_path / chat.digest)
        await asyncio.to_thread(anchor.forget, tmp_path, CHAT.digest)
        journal.record(Chat("third"), "call", {})
        await journal.settle(Chat("third"))
        for _ in range(2):
            await journal._save_numbers()
            assert anchor.peek(tmp_path).keys() == {bytes.fromhex(chat.digest) for chat in (OTHER, Chat("third"))}
        assert journal.record(CHAT, "call", {}) == 1, "a new chat of the same name begins anew"
        assert [entry.kind for entry in await journal.entries(CHAT)] == ["call"]
    async with Journal(tmp_path) as journal:
        assert [entry.kind for entry in await journal.entries(CHAT)] == ["call"]
        assert [entry.kind for entry in await journal.entries(OTHER)] == ["gap"]
