"""Whatever happens to the files of a journal: the service starts, says what is missing, and goes on."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cubicle import durable
from cubicle.core.chat import Chat
from cubicle.journal import anchor, reading, writer
from cubicle.journal.chat_files import ChatFiles
from cubicle.journal.journal import Journal
from cubicle.journal.verify import verify
from cubicle.tasks import start_task

CHAT, OTHER = Chat("room-1", "acme"), Chat("room-2", "acme")
LIMIT = 256 * 1024


async def filled(folder: Path, count: int = 300) -> None:
    """A journal of several segments."""
    async with Journal(folder, limit=LIMIT) as journal:
        for number in range(count):
            journal.record(CHAT, "call", {"call": str(number), "text": "x" * 300})
        journal.record(OTHER, "call", {"call": "other"})
        assert await journal.settle(CHAT)


def segment(folder: Path, place: int) -> Path:
    return reading.segments(folder / CHAT.digest)[place][1]


def cut_in_a_line(folder: Path) -> None:
    os.truncate(segment(folder, -1), segment(folder, -1).stat().st_size - 50)


def cut_an_older_one(folder: Path) -> None:
    os.truncate(segment(folder, 1), 5_000)


def cut_between_lines(folder: Path) -> None:
    path = segment(folder, -1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))


def fill_with_garbage(folder: Path) -> None:
    segment(folder, 2).write_bytes(os.urandom(20_000))


def put_garbage_in_the_middle(folder: Path) -> None:
    content = bytearray(segment(folder, 1).read_bytes())
    content[7_000:8_000] = b"\0" * 1_000
    segment(folder, 1).write_bytes(content)


def change_a_byte(folder: Path) -> None:
    content = bytearray(segment(folder, 0).read_bytes())
    content[content.index(b"xxx")] = ord("y")
    segment(folder, 0).write_bytes(content)


def remove_one(folder: Path) -> None:
    segment(folder, 1).unlink()


def remove_the_last(folder: Path) -> None:
    segment(folder, -1).unlink()


def remove_the_folder(folder: Path) -> None:
    for path in (folder / CHAT.digest).iterdir():
        path.unlink()
    (folder / CHAT.digest).rmdir()


def put_a_file_there(folder: Path) -> None:
    remove_the_folder(folder)
    (folder / CHAT.digest).write_text("no folder")


def put_a_link_there(folder: Path) -> None:
    target = segment(folder, -1).rename(folder / "elsewhere")
    (folder / CHAT.digest / "000099.jsonl").symlink_to(target)


def swap_two(folder: Path) -> None:
    one, two = segment(folder, 0), segment(folder, 1)
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


DAMAGES = [
    cut_in_a_line,
    cut_an_older_one,
    cut_between_lines,
    fill_with_garbage,
    put_garbage_in_the_middle,
    change_a_byte,
    remove_one,
    remove_the_last,
    remove_the_folder,
    put_a_file_there,
    put_a_link_there,
    swap_two,
]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_is_missing_is_said_and_the_journal_goes_on(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(tmp_path)
    known = anchor.peek(tmp_path)[bytes.fromhex(CHAT.digest)]
    assert known == 300
    damage(tmp_path)
    before = verify(tmp_path / CHAT.digest, known)
    assert before.problems or before.noted, "nobody would notice"
    with caplog.at_level(logging.WARNING):
        async with Journal(tmp_path, limit=LIMIT) as journal:
            assert journal.record(CHAT, "call", {"call": "after"}) in (300, 301)  # a half line had no number
            assert journal.record(OTHER, "call", {"call": "after"}) == 2
            assert await journal.settle(CHAT)
            entries = await journal.entries(CHAT, limit=10_000)
            assert entries[-1].fields == {"call": "after"}
            assert any(entry.kind == "gap" for entry in entries)
    assert "journal" in caplog.text
    after = verify(tmp_path / CHAT.digest)
    assert after.problems == []
    again = caplog.text.count("damaged")
    async with Journal(tmp_path, limit=LIMIT) as journal:  # it is said once
        journal.record(CHAT, "call", {})
        await journal.settle(CHAT)
    assert caplog.text.count("damaged") == again


async def test_calls_after_damage_that_left_nothing_are_found(tmp_path: Path) -> None:
    folder = tmp_path / CHAT.digest
    folder.mkdir()
    for number in range(1, 4):
        (folder / reading.segment_name(number)).write_bytes(b"garbage\n")
    async with Journal(tmp_path, limit=LIMIT) as journal:
        assert journal.record(CHAT, "call", {"call": "a", "identity": "k"}) == 1
        journal.record(CHAT, "end", {"call": "a"})
        found = await journal.find_call(CHAT, "k")
        assert found is not None
        assert found.end is not None


async def test_a_check_beside_a_service_that_drops_the_oldest_finds_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path)
    folder, read = tmp_path / CHAT.digest, reading.read_lines
    files = ChatFiles(folder, LIMIT)
    await asyncio.to_thread(files.open)
    dropped = []

    def read_late(path: Path) -> tuple[list[bytes], bytes]:
        if not dropped:
            dropped.append(path)
            files.prune(1, path.stat().st_size)
        return read(path)

    monkeypatch.setattr(reading, "read_lines", read_late)
    found = await asyncio.to_thread(verify, folder)
    assert (found.problems, found.last) == ([], 300)
    assert dropped == [folder / reading.segment_name(1)]
    files.close()


async def test_a_full_disk_takes_nothing_of_what_is_good_in_a_damaged_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path)
    put_garbage_in_the_middle(tmp_path)
    folder = tmp_path / CHAT.digest
    good, files = verify(folder).lines, ChatFiles(folder, LIMIT)

    def full(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        for _ in range(3):
            with pytest.raises(OSError, match="full"):
                await asyncio.to_thread(files.open)
    assert reading.set_aside(folder) == []
    await asyncio.to_thread(files.open)
    files.close()
    assert len(reading.set_aside(folder)) == 1
    found = verify(folder)
    assert found.problems == []
    assert found.lines == good + 2  # they say what was set aside, and what is missing


async def test_damaged_files_are_set_aside_and_not_deleted(tmp_path: Path) -> None:
    await filled(tmp_path)
    content = os.urandom(20_000)
    segment(tmp_path, 2).write_bytes(content)
    async with Journal(tmp_path, limit=LIMIT) as journal:
        journal.record(CHAT, "call", {})
        await journal.settle(CHAT)
    [aside] = reading.set_aside(tmp_path / CHAT.digest)
    assert (tmp_path / CHAT.digest / aside).read_bytes() == content


@pytest.mark.parametrize("name", ["numbers.json", "notes"])
async def test_what_does_not_belong_there_does_no_harm(name: str, tmp_path: Path) -> None:
    await filled(tmp_path)
    (tmp_path / name).write_bytes(b"\xff\0garbage")
    async with Journal(tmp_path, limit=LIMIT) as journal:
        assert journal.record(CHAT, "call", {}) == 301
        assert await journal.settle(CHAT)
    assert verify(tmp_path / CHAT.digest).problems == []


async def test_a_clock_that_goes_back_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dates = iter(range(2_000_000_000, 1_000_000_000, -1_000_000))
    monkeypatch.setattr("cubicle.journal.journal.time.time", lambda: float(next(dates)))
    async with Journal(tmp_path, limit=LIMIT) as journal:
        for number in range(100):
            journal.record(CHAT, "call", {"call": str(number)})
        assert await journal.settle(CHAT)
        entries = await journal.entries(CHAT)
        assert [entry.number for entry in entries] == list(range(1, 101))
    assert verify(tmp_path / CHAT.digest).problems == []


async def test_old_entries_are_dropped_by_the_clock_of_the_service_and_by_no_date(tmp_path: Path) -> None:
    await filled(tmp_path)
    for _, path in reading.segments(tmp_path / CHAT.digest)[:3]:
        os.utime(path, (1_000, 1_000))
    async with Journal(tmp_path, limit=LIMIT, max_age=3600) as journal:
        await journal.prune(None)
        await journal.prune(50_000.0)
        await journal.prune(53_000.0)
        await journal.settle(CHAT)
        assert len(await journal.entries(CHAT, limit=1_000)) == 300
    async with Journal(tmp_path, limit=LIMIT, max_age=3600) as journal:
        journal.record(CHAT, "call", {"call": "new"})
        await journal.settle(CHAT)
        await journal.prune(54_000.0)
        await journal.settle(CHAT)
        left = await journal.entries(CHAT, limit=1_000)
        assert left[-1].kind == "gap"
        assert 0 < len(left) < 100
        assert "new" in [entry.fields.get("call") for entry in left]
        await journal.prune(60_000.0)
        await journal.settle(CHAT)
        left = await journal.entries(CHAT, limit=1_000)
        assert len(left) > 1  # the gap was written to it: it is no older than that
        await journal.prune(70_000.0)
        await journal.settle(CHAT)
        left = await journal.entries(CHAT, limit=1_000)
    assert [entry.kind for entry in left] == ["gap"]
    assert "JOURNAL_DAYS" in str(left[0].fields["why"])
    assert verify(tmp_path / CHAT.digest).problems == []


async def test_what_was_written_meanwhile_is_not_dropped(tmp_path: Path) -> None:
    await filled(tmp_path, 3)
    async with Journal(tmp_path, limit=LIMIT, max_age=3600) as journal:
        await journal.prune(1.0)
        pruning = start_task(journal.prune(10_000.0), name="prune")
        await asyncio.sleep(0)
        journal.record(CHAT, "call", {"call": "new"})
        await journal.settle(CHAT)
        await pruning
        await journal.settle(CHAT)
        assert "new" in [entry.fields.get("call") for entry in await journal.entries(CHAT)]


@pytest.mark.parametrize("damage", [None, cut_in_a_line, cut_between_lines, remove_the_last, remove_the_folder])
async def test_one_that_made_room_is_checked_again_only_if_its_end_is_another(
    damage: Callable[[Path], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Path] = []
    check = ChatFiles.open

    def count(files: ChatFiles) -> None:
        checked.append(files.folder)
        check(files)

    monkeypatch.setattr("cubicle.journal.writer._MAX_OPEN", 1)
    await filled(tmp_path)
    monkeypatch.setattr(ChatFiles, "open", count)
    async with Journal(tmp_path, limit=LIMIT) as journal:
        for _ in range(2):
            for chat in (CHAT, OTHER):
                journal.record(chat, "call", {})
                assert await journal.settle(chat)
        assert len(checked) == 2
        if damage is not None:
            damage(tmp_path)
        journal.record(CHAT, "call", {"call": "after"})
        assert await journal.settle(CHAT)
        assert len(checked) == (2 if damage is None else 3)
        entries = await journal.entries(CHAT, limit=1_000)
        assert (entries[-1].number, entries[-1].fields) == (303, {"call": "after"})
        assert any(entry.kind == "gap" for entry in entries) == (damage is not None)
    assert verify(tmp_path / CHAT.digest).problems == []


@pytest.mark.parametrize("content", [b"garbage", b'{"ages": {"x": 1}}', b'{"ages": []}'])
async def test_without_the_ages_nothing_is_old(content: bytes, tmp_path: Path) -> None:
    await filled(tmp_path, 3)
    async with Journal(tmp_path, limit=LIMIT, max_age=3600) as journal:
        await journal.prune(1.0)
        (tmp_path / "ages.json").write_bytes(content)
        await journal.prune(10_000.0)
        await journal.settle(CHAT)
        assert len(await journal.entries(CHAT)) == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "journal-test", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_is_said_once_and_noted_when_there_is_room_again(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.journal.writer._RETRY_SECONDS", 0.0)
    async with Journal(small_disk / "journal", limit=4 << 20) as journal:
        journal.record(CHAT, "call", {"call": "first"})
        assert await journal.settle(CHAT)
        (small_disk / "filler").write_bytes(b"")
        with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
            while filler.write(b"\0" * 4096):
                pass
        for number in range(5):
            journal.record(CHAT, "call", {"call": str(number), "text": "x" * 8_000})
            assert not await journal.settle(CHAT)
        assert caplog.text.count("cannot be written") == 1
        (small_disk / "filler").unlink()
        journal.record(CHAT, "call", {"call": "last"})
        assert await journal.settle(CHAT)
        entries = await journal.entries(CHAT)
    assert [entry.kind for entry in entries] == ["call", "gap", "call"]
    assert (entries[1].fields["first"], entries[1].fields["last"]) == (2, 6)
    assert entries[2].number == 7
    assert verify(small_disk / "journal" / CHAT.digest).problems == []


@pytest.mark.parametrize("acknowledged", [1, 40, 400])
async def test_after_a_kill_everything_acknowledged_is_there(acknowledged: int, tmp_path: Path) -> None:
    last = {0: 0, 1: 0}
    for _ in range(3):
        program = [sys.executable, "-m", "tests.journal.keeper", str(tmp_path)]
        keeper = await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE)
        assert keeper.stdout is not None
        for _ in range(acknowledged):
            place, number = map(int, (await keeper.stdout.readline()).split())
            last[place] = number
        keeper.kill()
        for line in (await keeper.stdout.read()).splitlines(keepends=True):
            if line.endswith(b"\n"):
                place, number = map(int, line.split())
                last[place] = number
        await keeper.wait()
        for place, chat in enumerate((CHAT, OTHER)):
            found = reading.read_entries(tmp_path / chat.digest, 0, 10_000)
            assert last[place] <= max((entry.number for entry in found), default=0)
            assert verify(tmp_path / chat.digest).problems == []


async def test_the_journals_of_others_go_on_when_that_of_a_removed_chat_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(folder: Path, digest: str) -> None:
        raise OSError(errno.EUCLEAN, "Structure needs cleaning")

    monkeypatch.setattr(writer, "remove_record", fails)
    async with Journal(tmp_path, limit=LIMIT) as journal:
        journal.record(CHAT, "call", {"call": "1"})
        assert await journal.settle(CHAT)
        journal.forget(CHAT)
        await journal.settle(CHAT)
        journal.record(OTHER, "call", {"call": "2"})
        assert await journal.settle(OTHER)
    assert "could not be removed" in caplog.text


async def test_journals_go_on_when_a_file_fails_as_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close = os.close

    def fails(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        close(fd)
        if name.startswith(f"{tmp_path / CHAT.digest}/"):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(writer, "_MAX_OPEN", 1)
    async with Journal(tmp_path, limit=LIMIT) as journal:
        journal.record(CHAT, "call", {"call": "1"})
        assert await journal.settle(CHAT)
        monkeypatch.setattr(os, "close", fails)
        journal.record(OTHER, "call", {"call": "2"})
        assert await journal.settle(OTHER)
        monkeypatch.setattr(os, "close", close)
        journal.record(CHAT, "call", {"call": "3"})
        assert await journal.settle(CHAT)
    assert "failed as it was closed" in caplog.text
    assert verify(tmp_path / CHAT.digest).problems == []


async def test_journals_of_others_go_on_after_a_fault_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sync = ChatFiles.sync

    def fails(files: ChatFiles) -> None:
        if files.folder.name == CHAT.digest:
            raise RuntimeError("nobody foresaw this")
        sync(files)

    async with Journal(tmp_path, limit=LIMIT) as journal:
        monkeypatch.setattr(ChatFiles, "sync", fails)
        journal.record(CHAT, "call", {"call": "1"})
        assert not await journal.settle(CHAT)
        journal.record(OTHER, "call", {"call": "2"})
        assert await journal.settle(OTHER)
        monkeypatch.setattr(ChatFiles, "sync", sync)
    assert "nobody foresaw this" in caplog.text
