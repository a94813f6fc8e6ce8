"""What was done under an id is not done again, whoever restarted in between."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.guest import call_records
from cubicle.guest.call_records import CallRecords
from cubicle.guest.operations import Edited, Exit, Written
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import Machine
from cubicle.machine.process import Process
from cubicle.sandbox.warm_pool import connect
from cubicle.tools.base import Call
from cubicle.tools.command_once import require_memory
from tests.support.emptying import empty

BOOT = "one"
HOME = "/home/assistant"


class Sandbox:
    """One sandbox of the memory driver that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.driver = MemoryDriver(folder)
        self.records = folder / "memory" / "one" / "guest" / "calls"
        self.machine: Machine

    async def start(self) -> Machine:
        await self.driver.start("one", None)
        self.machine = await connect(self.driver, "one")
        return self.machine

    async def reconnect(self) -> Machine:
        """As a service does that was killed and started again."""
        self.machine.close()
        self.machine = await connect(self.driver, "one")
        return self.machine

    async def restart(self) -> Machine:
        self.machine.close()
        await self.driver.stop("one")
        return await self.start()

    async def run(self, call_id: str, command: str) -> tuple[Exit, bytes, Process]:
        async with self.machine.run(command, id=call_id, keep=True) as process:
            printed = b"".join([chunk async for _, chunk in process.output])
            return await process.wait(), printed, process


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    made = Sandbox(tmp_path)
    await made.driver.open()
    await made.start()
    yield made
    made.machine.close()
    await empty(made.driver)


async def test_a_command_of_a_known_id_is_told_and_not_run_again(sandbox: Sandbox) -> None:
    first = await sandbox.run("c1", "echo once >> ~/runs; echo out; echo err >&2; exit 3")
    for restart in (None, sandbox.reconnect, sandbox.restart):
        if restart is not None:
            await restart()
        exit, printed, process = await sandbox.run("c1", "echo other")
        assert (exit, printed, process.again) == (first[0], b"out\nerr\n", True)
    assert await sandbox.machine.read_bytes(f"{HOME}/runs", limit=100) == b"once\n"
    async with sandbox.machine.attach("c1") as process:
        assert await process.wait() == first[0]


async def test_a_running_command_is_followed_by_who_comes_back(sandbox: Sandbox) -> None:
    command = "echo once >> ~/runs; echo begun; read line < ~/go; echo $line"
    await sandbox.machine.output(f"mkfifo {HOME}/go")
    async with sandbox.machine.run(command, id="c1", keep=True) as process:
        async for _, chunk in process.output:
            assert chunk == b"begun\n"
            break
        process.detach()
    machine = await sandbox.reconnect()
    following = asyncio.create_task(sandbox.run("c1", command))
    await machine.output(f"echo ended > {HOME}/go")
    exit, printed, process = await following
    assert (exit.code, printed, process.again) == (0, b"begun\nended\n", True)
    assert await machine.read_bytes(f"{HOME}/runs", limit=100) == b"once\n"


async def test_a_command_that_the_stop_of_the_sandbox_ended_is_not_run_again(sandbox: Sandbox) -> None:
    async with sandbox.machine.run("echo begun; sleep 600", id="c1", keep=True) as process:
        async for _ in process.output:
            break
        process.detach()
    await sandbox.restart()
    for _ in range(2):
        with pytest.raises(MachineError) as no:
            await sandbox.run("c1", "echo begun; sleep 600")
        assert no.value.code is ErrorCode.INTERRUPTED
    with pytest.raises(MachineError) as no:
        async with sandbox.machine.attach("c1"):
            pass
    assert no.value.code is ErrorCode.INTERRUPTED


async def knows(machine: Machine, call_id: str) -> bool:
    try:
        await machine.look_for(call_id)
    except MachineError as error:
        assert error.code is ErrorCode.NOT_FOUND  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("keeps", [True, False], ids=["now", "older"])
async def test_who_follows_a_command_does_not_notice_who_asks_for_it(sandbox: Sandbox, *, keeps: bool) -> None:
    """`older`: as a guest is asked that keeps no records."""
    await sandbox.machine.output(f"mkfifo {HOME}/go")
    following = asyncio.create_task(sandbox.run("c1", "echo begun; read line < ~/go"))
    other = await connect(sandbox.driver, "one")
    other.keeps = keeps
    async with asyncio.timeout(60):
        while not await knows(other, "c1"):
            await asyncio.sleep(0.01)
    assert not await knows(other, "c2")
    assert [await knows(other, "c1") for _ in range(3)] == [True] * 3
    await sandbox.machine.output(f"echo ended > {HOME}/go")
    assert (await following)[:2] == (await sandbox.run("c1", ""))[:2]
    other.close()
    machine = await sandbox.restart()
    assert await knows(machine, "c1")
    assert not await knows(machine, "c2")


async def test_the_two_ends_of_a_long_output_are_kept(sandbox: Sandbox) -> None:
    exit, printed, _ = await sandbox.run("c1", "seq 1 100000")
    await sandbox.restart()
    again, kept, process = await sandbox.run("c1", "seq 1 100000")
    assert again == exit
    assert len(kept) + process.gap == len(printed)
    assert kept[: process.head] == printed[: process.head]
    assert kept[process.head :] == printed[process.head + process.gap :]
    assert process.head >= 60_000
    assert len(kept) - process.head >= 60_000


async def test_one_that_is_only_to_be_followed_is_not_started(sandbox: Sandbox) -> None:
    with pytest.raises(MachineError) as no:
        async with sandbox.machine.run("echo no", id="c1", known=True):
            pass
    assert (no.value.code, no.value.details.forgotten) == (ErrorCode.NOT_FOUND, 0.0)
    await sandbox.machine.output("echo yes", id="c2")
    async with sandbox.machine.run("", id="c2", known=True) as process:
        assert [chunk async for _, chunk in process.output] == [b"yes\n"]


async def test_a_command_that_was_refused_never_began(sandbox: Sandbox) -> None:
    with pytest.raises(MachineError) as no:
        async with sandbox.machine.run("true", cwd="/nowhere", id="c1", keep=True):
            pass
    assert no.value.code is ErrorCode.BAD_CWD
    await sandbox.restart()
    exit, printed, process = await sandbox.run("c1", "echo now")
    assert (exit.code, printed, process.again) == (0, b"now\n", False)


async def test_commands_that_do_not_ask_for_it_leave_no_record(sandbox: Sandbox) -> None:
    await sandbox.machine.output("true", id="c1")
    assert not sandbox.records.exists()


def bare(answer: Written | Edited) -> Written | Edited:
    """The answer without what is told of the change."""
    return answer.replace(change=None, inode=0) if isinstance(answer, Written) else answer.replace(change=None)


async def test_a_file_is_written_once(sandbox: Sandbox) -> None:
    path = f"{HOME}/file"
    first = bare(await sandbox.machine.write(path, "one", sync=True, id="w1"))
    assert first == Written(created=True, size=3, path=path)
    for restart in (None, sandbox.reconnect, sandbox.restart):
        if restart is not None:
            await restart()
        await sandbox.machine.write(path, "changed since")
        assert bare(await sandbox.machine.write(path, "one", sync=True, id="w1")) == first
        assert await sandbox.machine.read_bytes(path, limit=100) == b"changed since"
    assert [name async for name in sandbox.machine.list(HOME, hidden=True) if "tmp" in name.path] == []


async def test_a_file_is_edited_once(sandbox: Sandbox) -> None:
    path = f"{HOME}/file"
    await sandbox.machine.write(path, "a b c")
    first = bare(await sandbox.machine.edit(path, "b", "b b", id="e1", keep="e1"))
    for restart in (None, sandbox.reconnect, sandbox.restart):
        if restart is not None:
            await restart()
        again = await sandbox.machine.edit(path, "b", "b b", id="e1", keep="e1")
        assert bare(again) == first
        assert again.change is not None
        assert (again.change.kept, again.change.text_before) == (True, None)
    assert await sandbox.machine.read_bytes(path, limit=100) == b"a b b c"


async def test_an_edit_that_was_made_and_not_noted_is_not_made_again(sandbox: Sandbox) -> None:
    path = f"{HOME}/file"
    await sandbox.machine.write(path, "a b c")
    first = bare(await sandbox.machine.edit(path, "b", "d", id="e1"))
    sandbox.machine.close()
    await sandbox.driver.stop("one")
    newer = sandbox.records / "newer"
    lines = [line for line in newer.read_bytes().splitlines(keepends=True) if b"forgotten" in line or b"intent" in line]
    assert len(lines) == 2
    newer.write_bytes(b"".join(lines))
    await sandbox.start()
    assert bare(await sandbox.machine.edit(path, "b", "d", id="e1")) == first
    await sandbox.machine.write(path, "a b c")  # another file is there: it is one that the edit fits again
    await sandbox.restart()
    assert (await sandbox.machine.edit(path, "b", "d", id="e2")).line == 1


async def test_a_change_that_is_told_again_is_undone_by_the_id_of_who_asked_last(sandbox: Sandbox) -> None:
    path = f"{HOME}/file"
    await sandbox.machine.write(path, b"old")
    for keep in ("one", "two", "two", "three"):
        edited = await sandbox.machine.edit(path, "old", "new", id="e1", keep=keep)
        assert edited.change is not None
        assert edited.change.kept
        await sandbox.restart()
    with pytest.raises(MachineError) as no:
        await sandbox.machine.undo("one")
    assert no.value.code is ErrorCode.NOT_KEPT
    assert (await sandbox.machine.undo("three")).size == 3
    assert await sandbox.machine.read_bytes(path, limit=100) == b"old"


async def test_a_change_that_failed_was_not_begun(sandbox: Sandbox) -> None:
    path = f"{HOME}/file"

    async def content() -> AsyncIterator[bytes]:
        yield b"new"
        await sandbox.machine.output(f"mkdir {path}")

    with pytest.raises(MachineError):
        await sandbox.machine.write(path, content(), sync=True, id="w1")
    assert not await knows(sandbox.machine, "w1")
    await sandbox.machine.output(f"rmdir {path}")
    assert (await sandbox.machine.write(path, b"new", sync=True, id="w1")).created


async def test_a_change_that_may_have_been_forgotten_is_not_made_again(sandbox: Sandbox) -> None:
    await sandbox.machine.write(f"{HOME}/file", b"new", sync=True, id="w1")
    now = time.time()
    call = Call(Caller(Chat("a")), identity="key:a", command="w2@boot", begun=now - 60)
    await require_memory(sandbox.machine, call)
    sandbox.machine.close()
    await sandbox.driver.stop("one")
    (sandbox.records / "armed").rename(sandbox.records / "tripped")
    machine = await sandbox.start()
    for again, refused in (
        (call, True),
        (replace(call, begun=now + 3600), False),
        (replace(call, command="w1"), False),
    ):
        try:
            await require_memory(machine, again)
        except MachineError as error:
            assert (error.code, refused) == (ErrorCode.INTERRUPTED, True)  # noqa: PT017
        else:
            assert not refused


async def test_a_command_that_nobody_follows_is_ended_after_a_while(sandbox: Sandbox) -> None:
    async with sandbox.machine.run("echo begun; exec sleep 611", id="c1", keep=True, unattended=1) as process:
        async for _ in process.output:
            break
        process.detach()
    await sandbox.reconnect()
    async with asyncio.timeout(30):
        while (await sandbox.machine.output("pgrep -cfx 'sleep 611'"))[1] != b"0\n":
            await asyncio.sleep(0.1)
    exit, printed, _ = await sandbox.run("c1", "")
    assert (exit.signal, printed) == (15, b"begun\n")


async def test_without_a_host_the_time_does_not_count(sandbox: Sandbox) -> None:
    async with sandbox.machine.run("echo begun; exec sleep 612", id="c1", keep=True, unattended=2) as process:
        async for _ in process.output:
            break
        process.detach()
    sandbox.machine.close()
    await asyncio.sleep(4)
    sandbox.machine = await connect(sandbox.driver, "one")
    assert (await sandbox.machine.output("pgrep -cfx 'sleep 612'"))[1] == b"1\n"


async def test_commands_cannot_reach_the_records(sandbox: Sandbox) -> None:
    await sandbox.run("c1", "true")
    assert sandbox.records.joinpath("newer").exists()
    if os.geteuid() == 0:
        exit, _ = await sandbox.machine.output("ls /run/cubicle/calls")
        assert exit.code != 0


# ---- the files


def note(records: CallRecords, call_id: str, output: bytes = b"out", gap: int = 0) -> None:
    assert records.begin(call_id)
    assert records.finish(call_id, Exit(code=0), [(1, output)], len(output), gap)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"{",
        lambda content: content + b"garbage\n",
        lambda content: content + b"[1]\n",
        lambda content: content + b'{"id":{},"at":1}\n',
        lambda content: content + b'{"id":"x","at":"y"}\n',
        lambda content: content + b'{"id":"x","at":1,"parts":[[1,99]]}\n',
        lambda content: content + b"[" * 5000 + b"\n",
        lambda content: b"\0" * len(content),
        lambda content: b"x" * (9 * 1024 * 1024),
    ],
    ids=["short", "half a line", "garbage", "no object", "id", "time", "parts", "deep", "zeros", "long"],
)
def test_a_damaged_file_is_set_aside_and_nothing_is_believed_of_it(tmp_path: Path, damage: object) -> None:
    folder = tmp_path / "calls"
    note(CallRecords(str(folder), BOOT), "c1")
    newer = folder / "newer"
    newer.write_bytes(damage(newer.read_bytes()))  # type: ignore[operator]
    records = CallRecords(str(folder), BOOT)
    assert records.find("c1") is None
    assert records.forgotten > 0
    assert len(list(folder.glob("newer.*.bad"))) == 1
    note(records, "c2")
    again = CallRecords(str(folder), BOOT)
    assert again.find("c2") is not None
    assert again.forgotten == records.forgotten


def test_two_damaged_files_are_set_aside_each_time(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    for number in range(3):
        note(CallRecords(str(folder), BOOT), "c1")
        for name in ("older", "newer"):
            (folder / name).write_bytes(b"garbage")
        records = CallRecords(str(folder), BOOT)
        assert records.find("c1") is None
        note(records, "c2")
        again = CallRecords(str(folder), BOOT)
        assert again.find("c2") is not None
        assert again.forgotten == records.forgotten > 0
        assert len(list(folder.glob("*.bad"))) == 2 * (number + 1)


@pytest.mark.parametrize("gone", [("newer",), ("older", "newer"), ("armed",)])
@pytest.mark.parametrize("emptied", [True, False])
def test_files_that_are_gone_are_missed(tmp_path: Path, gone: tuple[str, ...], *, emptied: bool) -> None:
    folder = tmp_path / "calls"
    first = CallRecords(str(folder), BOOT)
    assert first.find("c1") is None
    assert first.forgotten == 0.0
    note(first, "c1")
    for name in gone:
        (folder / name).unlink()
        if emptied:
            (folder / name).touch()
    records = CallRecords(str(folder), BOOT)
    records.find("c1")
    again = CallRecords(str(folder), BOOT)
    again.find("c1")
    assert again.forgotten == records.forgotten
    assert (records.forgotten > 0) != (emptied and gone == ("armed",))


def test_the_files_stay_within_their_bounds(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    records = CallRecords(str(folder), BOOT)
    assert records.begin("long")
    for number in range(3 * call_records.MAX_LINES):
        note(records, f"c{number}", b"x" * 20_000)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2.1 * call_records.MAX_SEGMENT
    for seen in (records, CallRecords(str(folder), BOOT)):
        assert seen.find("c0") is None
        assert seen.forgotten > 0
        newest = seen.find(f"c{3 * call_records.MAX_LINES - 1}")
        assert newest is not None
        assert newest.output == [(1, b"x" * 20_000)]
        long = seen.find("long")  # it runs still: what is known of it does not go
        assert long is not None
        assert long.exit is None


def test_what_is_old_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "calls"
    note(CallRecords(str(folder), BOOT), "c1")
    monkeypatch.setattr(call_records, "MAX_AGE", -1.0)
    records = CallRecords(str(folder), BOOT)
    assert records.find("c1") is None
    assert records.forgotten > 0


@pytest.mark.parametrize("then", ["full", "another boot"])
def test_a_clock_that_was_set_back_brings_nothing_back_that_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    records = CallRecords(str(tmp_path / "calls"), BOOT)
    for number in range(2 * call_records.MAX_LINES):
        note(records, f"c{number}")
    forgotten, now = records.forgotten, time.time()
    assert forgotten > 0
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    if then == "full":
        records._fail()
    else:
        records = CallRecords(str(tmp_path / "calls"), "two")
        records.find("c0")
    assert records.forgotten >= forgotten


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_stops_no_command_and_is_remembered(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=True)
    try:
        records = CallRecords(str(small / "calls"), BOOT)
        note(records, "c1")
        (small / "filler").write_bytes(b"x" * (256 * 1024 - 16 * 1024))
        assert records.begin("c2")
        assert not records.finish("c2", Exit(code=0), [(1, b"x" * 60_000)], 60_000, 0)
        (small / "filler").unlink()
        for number in range(2):
            again = CallRecords(str(small / "calls"), BOOT)
            began = again.find("c2")
            assert began is not None
            assert began.exit is None
            assert again.find("c1") is not None
            assert again.forgotten > 0
            note(again, f"c{3 + number}")
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def test_a_file_that_could_not_be_made_once_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without a free inode, say, just when the newer file is full."""
    records = CallRecords(str(tmp_path / "calls"), BOOT)
    ids = [f"call-{number}" for number in range(call_records.MAX_LINES - 1)]
    assert all(records.begin(each) for each in ids)

    def full(path: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(call_records, "_opened", full)
        assert not records.begin("while it is full")
    assert records.begin("later")
    for known in (records, CallRecords(str(tmp_path / "calls"), BOOT)):
        assert all(known.find(each) is not None for each in (*ids, "later"))
        assert known.find("while it is full") is None
        assert known.forgotten > 0


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir(mode=0o755)
    records = CallRecords(str(folder), BOOT)
    assert not records.begin("c1")
    assert records.find("c1") is None
    assert records.forgotten > 0


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir(mode=0o700)
    (folder / "newer").symlink_to(tmp_path / "elsewhere")
    records = CallRecords(str(folder), BOOT)
    assert not records.begin("c1")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("boots", [("one", "two"), ("", ""), ("one", ""), ("", "two")])
def test_after_another_start_of_the_machine_what_is_not_known_may_be_forgotten(
    tmp_path: Path, boots: tuple[str, str]
) -> None:
    """The power went: what was written last may not have reached the disk."""
    folder = tmp_path / "calls"
    first = CallRecords(str(folder), boots[0])
    note(first, "c1")
    assert first.forgotten == 0.0
    before = (folder / "newer").read_bytes()
    assert first.begin("lost")
    (folder / "newer").write_bytes(before)
    now = time.time()
    records = CallRecords(str(folder), boots[1])
    assert records.find("c1") is not None
    assert records.find("lost") is None
    assert records.forgotten >= now
    note(records, "c2")
    again = CallRecords(str(folder), boots[1])
    assert again.find("c2") is not None
    assert (again.forgotten == records.forgotten) == (boots[1] != "")


def test_in_the_same_start_of_the_machine_a_new_guest_knows_everything(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    for number in range(3):
        records = CallRecords(str(folder), BOOT)
        assert records.find("never") is None
        assert records.forgotten == 0.0
        note(records, f"c{number}")
    assert records.find("c0") is not None


def test_that_there_are_records_is_on_disk_before_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "calls"
    CallRecords(str(folder), BOOT).find("c1")
    assert synced == [*(str(folder / name) for name in ("older", "newer")), str(folder), str(tmp_path)]
    CallRecords(str(folder), BOOT).find("c1")
    CallRecords(str(folder), "two").find("c1")
    assert len(synced) == 4
