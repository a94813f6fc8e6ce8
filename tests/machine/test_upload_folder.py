"""An upload's way onto the disk: whole or not at all, and never through what somebody laid in its way."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from cubicle.machine.upload_folder import UploadFolder


@pytest.fixture
def folder(tmp_path: Path) -> UploadFolder:
    (tmp_path / "uploads").mkdir()
    (tmp_path / "outside").mkdir()
    return UploadFolder(tmp_path / "uploads", os.geteuid())


def test_a_file_has_its_name_when_it_is_whole_and_not_before(folder: UploadFolder, tmp_path: Path) -> None:
    draft = folder.draft("a/b/file")
    draft.write([b"one ", b"two "] * 1000)
    assert os.listdir(tmp_path / "uploads/a/b") == []
    found = draft.publish()
    draft.close()
    assert (tmp_path / "uploads/a/b/file").read_bytes() == b"one two " * 1000
    assert found.st_size == 8000
    assert os.listdir(tmp_path / "uploads/a/b") == ["file"]


def test_what_comes_through_a_pipe_is_written_behind_the_rest_and_can_be_summed_up(
    folder: UploadFolder, tmp_path: Path
) -> None:
    draft = folder.draft("file")
    draft.write([b"a" * 5000])
    out, into = os.pipe()
    os.write(into, b"b" * 5000)
    draft.drain(out, 5000)
    os.close(out)
    os.close(into)
    whole, part = hashlib.sha256(), hashlib.sha256()
    draft.add_to(whole, 0, 10_000)
    draft.add_to(part, 4999, 5001)  # neither end is that of a page
    draft.publish()
    draft.close()
    assert whole.digest() == hashlib.sha256((tmp_path / "uploads/file").read_bytes()).digest()
    assert part.digest() == hashlib.sha256(b"ab").digest()


def test_only_folders_that_are_empty_and_that_nobody_is_about_to_fill_go(folder: UploadFolder, tmp_path: Path) -> None:
    uploads = tmp_path / "uploads"
    (uploads / "a/b/c").mkdir(parents=True)
    draft = folder.draft("a/x")
    folder.prune("a/b/c/gone")
    assert not (uploads / "a/b").exists()
    draft.write([b"x"])
    draft.publish()
    draft.close()
    assert (uploads / "a/x").read_text() == "x"
    folder.draft("a/new/y").close()
    assert os.listdir(uploads / "a") == ["x"]
    (uploads / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside/empty").mkdir()
    folder.prune("link/empty/file")
    folder.prune("link/file")
    assert (tmp_path / "outside/empty").is_dir()
    assert (uploads / "link").is_symlink()


def test_what_is_given_up_leaves_nothing_and_what_was_there_stays(folder: UploadFolder, tmp_path: Path) -> None:
    (tmp_path / "uploads/file").write_text("old")
    draft = folder.draft("file")
    draft.write([b"new"])
    draft.close()
    draft.close()
    assert os.listdir(tmp_path / "uploads") == ["file"]
    assert (tmp_path / "uploads/file").read_text() == "old"


@pytest.mark.parametrize("path", ["link/file", "file/x", "link/sub/file", "fifo/x"])
def test_a_link_or_a_file_on_the_way_ends_it(folder: UploadFolder, tmp_path: Path, path: str) -> None:
    (tmp_path / "uploads/link").symlink_to(tmp_path / "outside")
    (tmp_path / "uploads/file").write_text("x")
    os.mkfifo(tmp_path / "uploads/fifo")
    with pytest.raises(NotADirectoryError):
        folder.draft(path)
    assert os.listdir(tmp_path / "outside") == []


def test_a_link_with_the_name_is_replaced_not_followed(folder: UploadFolder, tmp_path: Path) -> None:
    (tmp_path / "outside/target").write_text("kept")
    (tmp_path / "uploads/name").symlink_to(tmp_path / "outside/target")
    draft = folder.draft("name")
    draft.write([b"new"])
    draft.publish()
    draft.close()
    assert (tmp_path / "outside/target").read_text() == "kept"
    assert not (tmp_path / "uploads/name").is_symlink()
    assert (tmp_path / "uploads/name").read_text() == "new"


def test_a_folder_with_the_name_is_not_replaced(folder: UploadFolder, tmp_path: Path) -> None:
    (tmp_path / "uploads/name").mkdir()
    with pytest.raises(IsADirectoryError):
        folder.draft("name")


def test_nothing_stays_open_when_the_sandbox_goes_down(folder: UploadFolder) -> None:
    before = len(os.listdir("/proc/self/fd"))
    draft = folder.draft("x/y")
    folder.end()
    assert len(os.listdir("/proc/self/fd")) <= before
    attempts = (
        lambda: draft.write([b"x"]),
        lambda: draft.drain(0, 1),
        lambda: draft.add_to(hashlib.sha256(), 0, 1),
        draft.publish,
        lambda: folder.draft("z"),
    )
    for attempt in attempts:
        with pytest.raises(OSError, match="no longer up"):
            attempt()


def test_one_that_cannot_be_begun_leaves_no_folders(folder: UploadFolder, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        folder.draft("a/b/" + "x" * 300)
    assert os.listdir(tmp_path / "uploads") == []


def test_one_may_end_while_folders_are_cleared_away(folder: UploadFolder, tmp_path: Path) -> None:
    drafts = [folder.draft(f"other/{number}") for number in range(3)]
    ending = threading.Thread(target=drafts[1].close)

    class Sly(str):
        """Just while all that are on their way are looked through, one of them ends."""

        __slots__ = ()

        def startswith(self, *_: object) -> bool:
            if ending.ident is None:
                ending.start()
                ending.join(0.2)
            return False

    for draft in drafts:
        draft.path = Sly(draft.path)
    (tmp_path / "uploads/a").mkdir()
    folder.prune("a/file")
    ending.join(60)
    assert not (tmp_path / "uploads/a").exists()
    folder.end()
