"""Durable writes: whole or as before, one winner, nothing left beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubicle import durable


def test_a_write_replaces_the_content_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    durable.write(tmp_path / "record", b"one")
    durable.write(tmp_path / "record", b"two")
    assert (tmp_path / "record").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["record"]
    assert (tmp_path / "record").stat().st_mode & 0o777 == 0o600


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable.write(tmp_path / "record", b"one")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        durable.write(tmp_path / "record", b"two")
    assert (tmp_path / "record").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["record"]


def test_the_content_is_synced_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append("rename"), replace(old, new))[1])
    durable.write(tmp_path / "record", b"one")
    assert order[0].startswith(f"{tmp_path}/.record.")
    assert order[1:] == ["rename", str(tmp_path)]


def test_the_first_of_two_that_make_a_file_wins(tmp_path: Path) -> None:
    assert durable.write_once(tmp_path / "secret", b"one") == b"one"
    assert durable.write_once(tmp_path / "secret", b"two") == b"one"
    assert os.listdir(tmp_path) == ["secret"]


def test_a_symlink_that_is_there_stays(tmp_path: Path) -> None:
    assert durable.link(tmp_path / "owner", "a") == "a"
    assert durable.link(tmp_path / "owner", "b") == "a"


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    durable.make_folder(tmp_path / "a" / "b")
    durable.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_move_takes_the_folder_with_all_in_it(tmp_path: Path) -> None:
    durable.make_folder(tmp_path / "from" / "x")
    durable.make_folder(tmp_path / "to")
    durable.write(tmp_path / "from" / "x" / "f", b"1")
    durable.move(tmp_path / "from" / "x", tmp_path / "to" / "y")
    assert (tmp_path / "to" / "y" / "f").read_bytes() == b"1"
    durable.remove(tmp_path / "to" / "y" / "f")
    durable.remove(tmp_path / "to" / "y" / "f")
    assert not (tmp_path / "to" / "y" / "f").exists()
