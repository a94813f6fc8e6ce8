"""The free-space floor: one line when it is passed, a refusal in plain words, and a margin on the way back."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from cubicle.machine.errors import NoSpace
from cubicle.sandbox.free_space import FreeSpace

MIB = 1024**2
SIZE = 100 * 1024 * MIB


class FileSystem:
    """What statvfs says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total, self.free, self.inodes = SIZE, SIZE // 2, 10_000
        monkeypatch.setattr(os, "statvfs", lambda path: self.found())

    def found(self) -> os.statvfs_result:
        blocks, free = self.total // 4096, self.free // 4096
        return os.statvfs_result((4096, 4096, blocks, free, free, 20_000, self.inodes, self.inodes, 0, 255))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FileSystem:
    return FileSystem(monkeypatch)


def test_below_the_floor_nothing_is_started_and_it_is_said_once(
    disk: FileSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    space = FreeSpace(tmp_path, 1024 * MIB)
    space.require()
    assert caplog.messages == []
    disk.free = 1000 * MIB
    for _ in range(5):
        with pytest.raises(NoSpace, match=r"1000 MiB free, 1\.0 GiB are kept free"):
            space.require()
    disk.free = 1030 * MIB  # above, but not by the margin
    with pytest.raises(NoSpace):
        space.require()
    disk.free = 2048 * MIB
    for _ in range(5):
        space.require()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "the disk of DATA_DIR is nearly full",
        "the disk of DATA_DIR has space again",
    ]


def test_the_floor_is_a_small_part_of_a_small_disk(disk: FileSystem, tmp_path: Path) -> None:
    disk.total, disk.free = 1000 * MIB, 100 * MIB
    space = FreeSpace(tmp_path, 1024 * MIB)
    space.require()
    assert space.usage().floor == 50 * MIB
    assert space.usage().above_floor == 50 * MIB


def test_what_is_not_on_the_disk_yet_is_not_free(disk: FileSystem, tmp_path: Path) -> None:
    disk.free = 2048 * MIB
    space = FreeSpace(tmp_path, 1024 * MIB)
    space.expect(1500 * MIB)
    with pytest.raises(NoSpace):
        space.require()


def test_too_few_inodes_count_as_too_little_space(disk: FileSystem, tmp_path: Path) -> None:
    disk.inodes = 10
    with pytest.raises(NoSpace):
        FreeSpace(tmp_path, 1024 * MIB).require()


def test_without_a_floor_nothing_is_refused(disk: FileSystem, tmp_path: Path) -> None:
    disk.free, disk.inodes = 0, 0
    FreeSpace(tmp_path, 0).require()


def test_close_to_the_floor_it_is_tight(disk: FileSystem, tmp_path: Path) -> None:
    space = FreeSpace(tmp_path, 1024 * MIB)
    space.measure()
    assert not space.tight
    disk.free = 4096 * MIB
    space.measure()
    assert space.tight
