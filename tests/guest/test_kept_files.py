"""What the file tools replaced, kept by link on one mount and by copy over two, and put back after any break."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cubicle.guest import file_copies, kept_files
from cubicle.guest.connection import OperationRefused
from cubicle.guest.file_changes import FileChange
from cubicle.guest.identity import As
from cubicle.guest.kept_files import KeptFiles
from cubicle.guest.wire import ErrorCode

SELF = As(-1, -1, False)


class Sandbox:
    """Two folders, and what is kept of changes in one of them in the other."""

    def __init__(self, kept: Path, home: Path) -> None:
        self.place = kept
        self.files = KeptFiles(str(kept))
        self.path = home / "note.txt"

    def change(self, id: str, content: bytes) -> FileChange:
        """What a file tool does: keep what is there, then put a new file in its place."""
        new = self.path.with_name("new")
        new.write_bytes(content)
        folder, fd = os.open(self.path.parent, os.O_PATH), os.open(new, os.O_RDONLY)
        try:
            found = self.files.keep(id, str(self.path), folder, self.path.name, fd, SELF)
        finally:
            os.close(folder)
            os.close(fd)
        new.rename(self.path)
        return found

    def swap(self, id: str, *, redo: bool = False) -> bytes | None:
        self.files.swap(self.files.find(id), redo, SELF, lambda fd: None)
        return self.path.read_bytes() if self.path.exists() else None

    def try_to_swap(self, id: str, *, redo: bool) -> str:
        """Why not."""
        try:
            self.swap(id, redo=redo)
        except OperationRefused as no:
            return no.code
        return ""


@pytest.fixture(params=["one mount", "two mounts"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sandbox]:
    if request.param == "one mount":
        (tmp_path / "home").mkdir()
        yield Sandbox(tmp_path / "state" / "kept", tmp_path / "home")
        return
    home = Path("/dev/shm") / f"cubicle-test-{os.getpid()}-{os.urandom(4).hex()}"
    home.mkdir()
    try:
        yield Sandbox(tmp_path / "state" / "kept", home)
    finally:
        for left in home.iterdir():
            left.unlink()
        home.rmdir()


def test_a_change_is_taken_back_and_made_again(sandbox: Sandbox) -> None:
    sandbox.path.write_bytes(b"one")
    sandbox.path.chmod(0o640)
    os.utime(sandbox.path, ns=(1, 1_000_000_000))
    assert sandbox.change("a", b"two").kept
    for _ in range(2):
        assert sandbox.swap("a") == b"one"
        status = sandbox.path.stat()
        assert (status.st_mode & 0o777, status.st_mtime_ns, status.st_nlink) == (0o640, 1_000_000_000, 1)
        assert sandbox.swap("a", redo=True) == b"two"
    assert {path.name for path in sandbox.path.parent.iterdir()} == {"note.txt"}
    assert len(list(sandbox.place.iterdir())) == 2


def test_a_new_file_goes_and_comes_again(sandbox: Sandbox) -> None:
    assert sandbox.change("a", b"new").kept
    for _ in range(2):
        assert sandbox.swap("a") is None
        assert sandbox.swap("a", redo=True) == b"new"
    assert sandbox.path.stat().st_nlink == 1
    assert {path.name for path in sandbox.path.parent.iterdir()} == {"note.txt"}


def test_on_one_mount_nothing_is_copied(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "kept", tmp_path)
    sandbox.path.write_bytes(b"one")
    inode = sandbox.path.stat().st_ino
    sandbox.change("a", b"two")
    assert sandbox.swap("a") == b"one"
    assert sandbox.path.stat().st_ino == inode


def test_what_a_program_changed_through_an_open_file_is_not_put_back(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "kept", tmp_path)
    sandbox.path.write_bytes(b"one")
    (tmp_path / "other").hardlink_to(sandbox.path)
    sandbox.change("a", b"two")
    (tmp_path / "other").write_bytes(b"sly")
    assert sandbox.try_to_swap("a", redo=False) == ErrorCode.NOT_KEPT
    assert sandbox.path.read_bytes() == b"two"


def test_only_the_guest_can_open_what_is_kept(sandbox: Sandbox) -> None:
    sandbox.path.write_bytes(b"one")
    sandbox.change("a", b"two")
    assert sandbox.place.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_open_is_not_used(sandbox: Sandbox) -> None:
    sandbox.place.mkdir(parents=True, mode=0o755)
    sandbox.path.write_bytes(b"one")
    found = sandbox.change("a", b"two")
    assert (found.kept, bool(found.reason), list(sandbox.place.iterdir())) == (False, True, [])


def test_a_file_that_is_too_large_is_not_kept(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "MAX_BYTES", 10)
    sandbox.path.write_bytes(b"x" * 11)
    found = sandbox.change("a", b"two")
    assert (found.kept, found.reason) == (False, "what was there is too large to be kept")
    assert found.before == hashlib.sha256(b"x" * 11).hexdigest()


class Broken(BaseException):
    """The power goes."""


_STEPS = ("rename", "link", "unlink")


@pytest.mark.parametrize("before", [b"one", None])
@pytest.mark.parametrize("redo", [False, True])
@pytest.mark.parametrize("step", range(1, 6))
def test_a_swap_that_breaks_off_anywhere_can_be_made_or_taken_back(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, step: int, redo: bool, before: bytes | None
) -> None:
    if before is not None:
        sandbox.path.write_bytes(before)
    sandbox.change("a", b"two")
    if redo:
        sandbox.swap("a")
    left = step

    def breaking(name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def call(*arguments: object, **options: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Broken
            real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in _STEPS:
            patch.setattr(os, name, breaking(name))
        with contextlib.suppress(Broken):
            sandbox.swap("a", redo=redo)
    for _ in range(2):
        for again in (redo, not redo):
            wanted = b"two" if again else before
            assert sandbox.try_to_swap("a", redo=again) in ("", ErrorCode.EXISTS)  # then it had been made
            assert (sandbox.path.read_bytes() if sandbox.path.exists() else None) == wanted


def test_a_full_disk_keeps_nothing_and_spoils_nothing(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.path.write_bytes(b"one")
    sandbox.change("a", b"two")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_copies, "_copy", full)
        patch.setattr(os, "link", full)
        with pytest.raises(OSError, match="No space"):
            sandbox.swap("a")
        found = sandbox.change("b", b"three")
    assert (found.kept, "No space" in found.reason, sandbox.path.read_bytes()) == (False, True, b"three")
    with pytest.raises(OperationRefused):
        sandbox.files.find("b")
    sandbox.path.write_bytes(b"two")
    assert sandbox.swap("a") == b"one"
    assert {path.name for path in sandbox.path.parent.iterdir()} == {"note.txt"}


def test_where_the_kernel_copies_nothing_the_bytes_go_through_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3_000_001)
    (tmp_path / "a").write_bytes(content)

    def some(source: int, into: int, *_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "copy_file_range", some)
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        file_copies.copy_in(fd, str(tmp_path / "b"))
    finally:
        os.close(fd)
    assert (tmp_path / "b").read_bytes() == content
