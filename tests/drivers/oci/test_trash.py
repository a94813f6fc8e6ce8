"""The embedded driver's trash under kill -9, on a full disk, and with garbage in it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cubicle import durable
from cubicle.core.chat import Chat
from cubicle.drivers.oci import mounts
from cubicle.drivers.oci import records as oci_records
from cubicle.drivers.oci.images_in_use import sandboxes_by_image
from cubicle.drivers.oci.records import Meta, OciRecords
from cubicle.drivers.oci.trash import Trash
from cubicle.images import users as image_users
from cubicle.machine.errors import OwnerHasSandbox, SandboxError
from cubicle.sandbox.trash import TrashNote

CHAT, OTHER = Chat("chat"), Chat("other")
NOTE = TrashNote(CHAT, "removed by a test", time.time())

# Dies before the Nth system call that changes a name or opens a file: after the one before it.
_SCRIPT = """
import os, signal, sys
from pathlib import Path
from cubicle.drivers.oci.records import OciRecords
from cubicle.drivers.oci.trash import Trash
from cubicle.sandbox.trash import TrashNote
from cubicle.core.chat import Chat

folder, deed, owner, left = sys.argv[1:4] + [int(sys.argv[4])]
trash = Trash(OciRecords(Path(folder)))
note = TrashNote(Chat("chat"), "removed by a test", 1.0)
rest = [left]

def count(event, arguments):
    if event in ("os.rename", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "open", "subprocess.Popen"):
        rest[0] -= 1
        if rest[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
if deed == "discard":
    trash.discard(trash.records.home("one"), note)
elif deed == "restore":
    trash.restore("one", owner)
else:
    trash.purge("one")
"""


@pytest.fixture
def records(tmp_path: Path) -> OciRecords:
    return make_records(tmp_path / "data")


def make_records(folder: Path) -> OciRecords:
    records = OciRecords(folder)
    records.make_folders()
    return records


def make_home(records: OciRecords, name: str, owner: Chat | None = CHAT) -> None:
    home = records.home(name)
    home.path.mkdir()
    (home.path / "disk.img").write_bytes(b"kept" * 1000)
    home.bundle.mkdir()
    home.config.write_text("x" * 10_000)
    home.save_meta(Meta("image-of-" + name, 1))
    if owner is not None:
        records.bind(home, owner.digest)


def killed_at(records: OciRecords, deed: str, owner: Chat, left: int) -> bool:
    """Whether the deed was cut off after so many system calls."""
    words = [sys.executable, "-c", _SCRIPT, str(records.root), deed, owner.digest, str(left)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def every_cut(tmp_path: Path, deed: str, owner: Chat = CHAT) -> Iterator[OciRecords]:
    """The records after a kill at each point of a deed, and after the whole of it."""
    for left in range(100):
        records = make_records(tmp_path / f"{deed}-{left}")
        make_home(records, "one")
        if deed != "discard":
            Trash(records).discard(records.home("one"), NOTE)
        cut = killed_at(records, deed, owner, left)
        yield records
        if not cut:
            assert left > 1
            return
    pytest.fail("it never came to an end")


def places(records: OciRecords) -> tuple[bool, bool]:
    """Whether the sandbox is where sandboxes are, and whether it is in the trash; whole, if it is there."""
    found = records.home("one").path, records.trash / "one"
    for path in found:
        assert not path.exists() or (path / "disk.img").read_bytes() == b"kept" * 1000
    return found[0].exists(), found[1].exists()


def can_have_another(records: OciRecords, chat: Chat) -> bool:
    try:
        make_home(records, "two", chat)
    except OwnerHasSandbox:
        return False
    return True


def test_a_kill_at_any_point_of_a_removal_leaves_it_here_or_there(tmp_path: Path) -> None:
    outcomes = set()
    for records in every_cut(tmp_path, "discard"):
        here, there = places(records)
        assert here is not there
        assert records.find(CHAT.digest, "one") == ("one" if here else None)
        assert [each.name for each in Trash(records).discarded()] == ([] if here else ["one"])
        assert can_have_another(records, CHAT) is there
        outcomes.add(here)
    assert outcomes == {True, False}


@pytest.mark.parametrize("owner", [CHAT, OTHER], ids=["same", "other"])
def test_a_kill_at_any_point_of_a_restore_leaves_it_here_or_there(tmp_path: Path, owner: Chat) -> None:
    outcomes = set()
    for records in every_cut(tmp_path, "restore", owner):
        here, there = places(records)
        assert here is not there
        assert records.find(owner.digest, "one") == ("one" if here else None)
        if there:
            Trash(records).restore("one", owner.digest)  # once more, to the end
        assert not can_have_another(records, owner)
        assert records.find(owner.digest, "") == "one"
        outcomes.add(here)
    assert outcomes == {True, False}


def test_a_deletion_that_was_cut_off_is_finished_at_the_next_start(tmp_path: Path) -> None:
    for records in every_cut(tmp_path, "purge"):
        here, _ = places(records)
        assert not here
        Trash(records).finish()
        assert set(os.listdir(records.trash)) <= {"one"}


@pytest.mark.oci
def test_what_cannot_be_removed_holds_up_nothing_else(records: OciRecords, caplog: pytest.LogCaptureFixture) -> None:
    """Something is mounted in it: the next start of the service goes on with the others, and begins to serve."""
    for name in ("one", "two"):
        make_home(records, name, Chat(name))
        Trash(records).discard(records.home(name), NOTE)
    busy = records.trash / "one" / "busy"
    busy.mkdir()
    mounts.mount("none", busy, "tmpfs", options="size=1m")
    try:
        assert Trash(records).purge("one")
        os.rename(records.trash / "two", records.trash / "two.deleting")
        Trash(records).finish()
        assert os.listdir(records.trash) == ["one.deleting"]
        assert "cannot be removed" in caplog.text
    finally:
        mounts.unmount(records.trash / "one.deleting" / "busy")
    Trash(records).finish()
    assert os.listdir(records.trash) == []


def test_a_full_disk_takes_the_note_in_place_of_the_bundle(
    records: OciRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(records, "one")
    home = records.home("one")
    write = durable.write

    def full(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        if home.bundle.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data, mode=mode)

    monkeypatch.setattr(durable, "write", full)
    Trash(records).discard(home, NOTE)
    (found,) = Trash(records).discarded()
    assert found.note is not None
    assert found.note.chat == CHAT


def test_without_any_space_it_is_removed_restored_and_deleted(
    records: OciRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trash = Trash(records)
    for name in ("one", "two"):
        make_home(records, name)
        with monkeypatch.context() as short:
            short.setattr(durable, "write", full)
            trash.discard(records.home(name), NOTE)
    monkeypatch.setattr(durable, "write", full)
    assert [(each.owner, each.note) for each in trash.discarded()] == [(CHAT.digest, None)] * 2
    trash.restore("one", CHAT.digest)
    trash.purge("two")
    assert places(records) == (True, False)
    assert trash.discarded() == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"chat": 1}', json.dumps({"chat": "../x", "tenant": "", "at": 1}).encode()]
)
def test_a_note_that_cannot_be_read_hides_nothing(records: OciRecords, content: bytes) -> None:
    make_home(records, "one")
    make_home(records, "two", OTHER)
    for name in ("one", "two"):
        Trash(records).discard(records.home(name), NOTE)
    (records.trash / "one" / "discarded.json").write_bytes(content)
    found = {each.name: each.note is not None for each in Trash(records).discarded()}
    assert found == {"one": False, "two": True}
    Trash(records).restore("one", CHAT.digest)
    assert places(records) == (True, False)


def test_the_image_of_a_sandbox_in_the_trash_is_in_use(records: OciRecords, tmp_path: Path) -> None:
    make_home(records, "one")
    Trash(records).discard(records.home("one"), NOTE)
    (user,) = image_users.users(tmp_path / "images", sandboxes_by_image, records.root)
    assert user.sandboxes == {"image-of-one": 1}


def test_a_program_that_stands_still_holds_nobody_up_for_ever(
    records: OciRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cubicle rm` that was halted (Ctrl-Z) in the middle: the service says so, and looks after the other chats."""
    make_home(records, "one")
    monkeypatch.setattr(oci_records, "_LOCK_SECONDS", 0.05)
    with durable.locked_folder(records.owners):
        with pytest.raises(SandboxError, match="Another process"):
            Trash(records).discard(records.home("one"), NOTE)
        assert places(records) == (True, False)
    Trash(records).discard(records.home("one"), NOTE)
    assert places(records) == (False, True)


def test_of_many_that_remove_and_restore_at_once_none_is_lost(records: OciRecords) -> None:
    trash = Trash(records)
    chats = [Chat(f"chat-{number}") for number in range(8)]
    for chat in chats:
        make_home(records, chat.id, chat)

    def there_and_back(chat: Chat) -> None:
        for _ in range(10):
            trash.discard(records.home(chat.id), TrashNote(chat, "", 1.0))
            trash.restore(chat.id, chat.digest)

    with ThreadPoolExecutor(len(chats)) as threads:
        list(threads.map(there_and_back, chats))
    assert {chat.id: records.find(chat.digest, "") for chat in chats} == {chat.id: chat.id for chat in chats}
    assert trash.discarded() == []
