"""The audit log by itself: what is recorded is on disk, in one chain, and nothing can be changed unseen."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cubicle.audit import inbox
from cubicle.audit.audit import MAX_WAITING, Audit, AuditUnavailable
from cubicle.audit.files import Head
from cubicle.audit.verify import check_log
from cubicle.audit.writer import AuditWriter
from cubicle.core.chat import Chat
from cubicle.core.identity import Credential, Identity, Role
from cubicle.journal import reading
from cubicle.journal.format import Entry
from cubicle.operation_settings import AuditMode
from tests.audit.disk import fill

KEY = b"k" * 32
CHAT = Chat("room-1", "acme")
SMALL = 16 * 1024


def audit_in(folder: Path, **options: object) -> Audit:
    return Audit(folder, KEY, segment=SMALL, **options)  # type: ignore[arg-type]


async def filled(folder: Path, count: int = 300) -> None:
    """A log of several files."""
    async with audit_in(folder) as audit:
        for number in range(count):
            audit.record("call", {"call": str(number), "text": "x" * 100}, chat=CHAT)
            if number % 50 == 0:
                await audit.settle()


def records(folder: Path) -> list[Entry]:
    return list(reading.all_entries(folder))


def kinds(folder: Path) -> list[str]:
    return [entry.kind for entry in records(folder)]


async def test_a_record_says_who_and_what_and_holds_no_chat_id(tmp_path: Path) -> None:
    who = Identity("acme", Role.OPERATOR, "ann@example.com", "k1", credential=Credential.BEARER)
    async with audit_in(tmp_path) as audit:
        audit.record("call", {"tool": "bash_tool"}, chat=CHAT, identity=who)
        digest = audit.chat_digest(CHAT)
    start, call, stop = records(tmp_path)
    assert (start.kind, stop.kind) == ("start", "stop")
    assert call.fields == {
        "tenant": "acme", "user": "ann@example.com", "key": "k1", "role": "operator", "by": "bearer",
        "chat": digest, "tool": "bash_tool",
    }  # fmt: skip
    assert CHAT.digest not in json.dumps(call.fields)
    assert b"room-1" not in b"".join(path.read_bytes() for path in tmp_path.glob("*.jsonl"))
    assert Audit(tmp_path, b"another").chat_digest(CHAT) != digest


async def test_a_log_that_was_closed_in_order_is_good_and_goes_on(tmp_path: Path) -> None:
    await filled(tmp_path)
    await filled(tmp_path, 10)
    found = check_log(tmp_path)
    assert (found.problems, found.noted, found.records) == ([], [], 314)
    assert (found.first, found.last) == (1, 314)
    assert len(reading.segments(tmp_path)) > 3
    assert check_log(tmp_path, Head(found.last, found.hash)).problems == []
    assert check_log(tmp_path, Head(found.last, "0" * 64)).problems
    assert check_log(tmp_path, Head(found.last + 1, found.hash)).problems


def lines_of(folder: Path, place: int) -> tuple[Path, list[bytes]]:
    path = reading.segments(folder)[place][1]
    return path, path.read_bytes().splitlines(keepends=True)


def change_a_byte(folder: Path, place: int) -> None:
    path, lines = lines_of(folder, place)
    lines[1] = lines[1].replace(b"xxx", b"xyx", 1)
    path.write_bytes(b"".join(lines))


def remove_a_line(folder: Path, place: int) -> None:
    path, lines = lines_of(folder, place)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))


def swap_two_lines(folder: Path, place: int) -> None:
    path, lines = lines_of(folder, place)
    lines[1], lines[2] = lines[2], lines[1]
    path.write_bytes(b"".join(lines))


def repeat_a_line(folder: Path, place: int) -> None:
    path, lines = lines_of(folder, place)
    path.write_bytes(b"".join([lines[0], *lines]))


def remove_the_first_line(folder: Path, place: int) -> None:
    path, lines = lines_of(folder, place)
    path.write_bytes(b"".join(lines[1:]))


def remove_the_last_line(folder: Path, place: int) -> None:
    path, lines = lines_of(folder, place)
    path.write_bytes(b"".join(lines[:-1]))


def remove_the_file(folder: Path, place: int) -> None:
    reading.segments(folder)[place][1].unlink()


TAMPERED = [
    change_a_byte, remove_a_line, swap_two_lines, repeat_a_line, remove_the_first_line, remove_the_last_line,
    remove_the_file,
]  # fmt: skip


@pytest.mark.parametrize("place", [0, 2, -1])
@pytest.mark.parametrize("tamper", TAMPERED)
async def test_what_was_changed_is_found_before_and_after_a_restart(
    tamper: Callable[[Path, int], None], place: int, tmp_path: Path
) -> None:
    await filled(tmp_path, 310)
    assert check_log(tmp_path).problems == []
    tamper(tmp_path, place)
    assert check_log(tmp_path).problems
    async with audit_in(tmp_path) as audit:
        audit.record("call", {"call": "after"})
    assert check_log(tmp_path).problems, "a service that started again hid it"
    assert "after" in [entry.fields.get("call") for entry in records(tmp_path)]


async def test_what_is_removed_while_the_service_runs_is_found(tmp_path: Path) -> None:
    async with audit_in(tmp_path) as audit:
        for _ in range(10):
            audit.record("call", {"text": "x"})
        await audit.settle()
        remove_the_last_line(tmp_path, -1)
        audit.record("call", {"call": "after"})
        await audit.settle()
        assert check_log(tmp_path).problems


async def test_a_killed_service_loses_a_second_at_most_and_the_log_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).parent / "keeper.py"), str(folder), stdout=subprocess.PIPE
    )
    assert program.stdout is not None
    told: list[tuple[int, float]] = []
    try:
        async with asyncio.timeout(60):
            while not told or told[-1][1] - told[0][1] < 2.0:
                number, at = (await program.stdout.readline()).split()
                told.append((int(number), float(at)))
    finally:
        program.kill()
        await program.wait()
    for line in (await program.stdout.read()).splitlines():
        if len(parts := line.split()) == 2:
            told.append((int(parts[0]), float(parts[1])))
    ended = told[-1][1]
    kept = [int(str(entry.fields["call"])) for entry in records(folder) if entry.kind == "call"]
    assert kept == list(range(len(kept)))
    lost = [at for number, at in told if number >= len(kept)]
    assert not lost or ended - lost[0] < 1.0, f"{ended - lost[0]:.3f} s of records are missing"
    assert check_log(folder).problems == [], "a half line is no change"
    async with Audit(folder, KEY):
        pass
    found = check_log(folder)
    assert found.problems == []
    assert "was killed" in " ".join(found.noted)
    async with Audit(folder, KEY):
        pass
    assert len(check_log(folder).noted) == 1  # it is said once


async def test_a_full_disk_refuses_new_work_and_loses_nothing(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.audit.writer.RETRY_SECONDS", 0.05)
    folder = small_disk / "audit"
    async with audit_in(folder) as audit:
        audit.record("call", {"call": "0"})
        await audit.settle()
        await asyncio.to_thread(fill, small_disk / "others")
        count = 0
        async with asyncio.timeout(30):
            while not audit.error:  # the file that is open has its place: it takes some
                count += 1
                audit.record("call", {"call": str(count), "text": "x" * 500})
                await audit.settle()
        assert count > 10, "the place was not kept"
        with pytest.raises(AuditUnavailable, match="No space left on device"):
            audit.require()
        for _ in range(100):
            count += 1
            audit.record("call", {"call": str(count), "text": "x" * 500})
        (small_disk / "others").unlink()
        async with asyncio.timeout(30):
            while audit.error:
                await asyncio.sleep(0.02)
        audit.require()
        await audit.settle()
    assert check_log(folder).problems == check_log(folder).noted == []
    calls = [int(str(entry.fields["call"])) for entry in records(folder) if entry.kind == "call"]
    assert calls == list(range(count + 1)), "a record is missing, or there twice"


async def test_a_log_that_cannot_be_opened_refuses_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.audit.writer.RETRY_SECONDS", 0.05)
    folder = tmp_path / "file" / "audit"
    folder.parent.touch()
    async with audit_in(folder) as audit:
        assert audit.error
        with pytest.raises(AuditUnavailable):
            audit.require()
        audit.record("call", {"call": "kept"})
        folder.parent.unlink()
        async with asyncio.timeout(30):
            while audit.error:
                await asyncio.sleep(0.02)
        await audit.settle()
    assert kinds(folder) == ["start", "call", "stop"]


async def test_who_does_not_require_the_log_goes_on_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "file" / "audit"
    folder.parent.touch()
    async with audit_in(folder, mode=AuditMode.ON) as audit:
        assert audit.error
        audit.require()


async def test_what_has_no_room_in_memory_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.audit.audit.MAX_WAITING", 2_000)
    async with audit_in(tmp_path) as audit:
        for number in range(100):
            audit.record("call", {"call": str(number), "text": "x" * 100})
        await audit.settle()
        audit.record("call", {"call": "after"})
    assert MAX_WAITING > 1 << 20
    found = check_log(tmp_path)
    assert found.problems == []
    assert "no room in memory" in found.noted[0]
    assert found.last == 1 + 100 + 1 + 1  # start, all calls, the one after, stop


async def test_old_records_are_dropped_by_the_clock_of_the_service_and_the_chain_holds(tmp_path: Path) -> None:
    await filled(tmp_path)
    for _, path in reading.segments(tmp_path)[:3]:
        os.utime(path, (1_000, 1_000))
    async with audit_in(tmp_path, max_age=3600) as audit:
        audit.prune(50_000.0)
        audit.prune(53_000.0)
        await audit.settle()
        assert len(records(tmp_path)) > 300, "a date dropped it"
        audit.prune(54_000.0)
        audit.record("call", {"call": "new"})
        await audit.settle()
        assert len(records(tmp_path)) < 100
        assert check_log(tmp_path).problems == []
        assert "AUDIT_DAYS" in " ".join(check_log(tmp_path).noted)
    assert check_log(tmp_path).problems == []
    await filled(tmp_path, 5)
    assert check_log(tmp_path).problems == []
    remove_a_line(tmp_path, 0)
    assert check_log(tmp_path).problems


async def test_a_bound_in_size_drops_the_oldest_and_says_so(tmp_path: Path) -> None:
    async with Audit(tmp_path, KEY, limit=128 * 1024) as audit:
        for number in range(2_000):
            audit.record("call", {"call": str(number), "text": "x" * 200})
        await audit.settle()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) <= 128 * 1024
    found = check_log(tmp_path)
    assert found.problems == []
    assert "AUDIT_MB" in " ".join(found.noted)


async def test_each_day_has_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.audit.files._MIN_ROLL_SECONDS", 0.0)
    async with audit_in(tmp_path) as audit:
        audit.record("call", {})
        await audit.settle()
        now = time.time()
        monkeypatch.setattr("cubicle.audit.files.time.time", lambda: now + 86_400)
        audit.record("call", {})
        await audit.settle()
    assert len(reading.segments(tmp_path)) == 2
    assert check_log(tmp_path).problems == []


async def test_a_disk_that_does_not_answer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.audit.audit._STUCK_SECONDS", 0.1)
    write, stuck = AuditWriter._write, asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(writer: AuditWriter) -> None:
        if writer._begun and writer._number:
            asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result(30)
        write(writer)

    async with audit_in(tmp_path) as audit:
        monkeypatch.setattr(AuditWriter, "_write", wait)
        audit.record("call", {})
        await audit.settle()
        with pytest.raises(AuditUnavailable, match="does not answer"):
            audit.require()
        stuck.set()
        async with asyncio.timeout(30):
            while audit.error:
                await asyncio.sleep(0.01)
    assert kinds(tmp_path) == ["start", "call", "stop"]


async def test_notes_of_the_command_line_are_taken_in_once(tmp_path: Path) -> None:
    await asyncio.to_thread(inbox.leave_note, tmp_path, "command", {"what": "cubicle keys add", "user": "root"})
    (tmp_path / inbox.FOLDER / "garbage.json").write_bytes(b"\xff{")
    for _ in range(2):
        async with audit_in(tmp_path):
            pass
    assert kinds(tmp_path).count("command") == 1
    assert inbox.read_notes(tmp_path) == []
    assert list((tmp_path / inbox.FOLDER).glob("garbage.json.bad-*")), "it was deleted"
    assert check_log(tmp_path).problems == []


async def test_without_an_audit_log_nothing_is_written(tmp_path: Path) -> None:
    async with audit_in(tmp_path / "none", mode=AuditMode.OFF) as audit:
        audit.record("call", {})
        audit.require()
    assert not (tmp_path / "none").exists()
