"""The disk image of a sandbox: what is damaged is repaired, and what the host lacks the sandbox lacks."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cubicle import durable
from cubicle.drivers.oci import disk as disks
from cubicle.drivers.oci import ext4, loops
from cubicle.drivers.oci.disk import Disk, DiskMode
from cubicle.images.store import SUBUID_START
from cubicle.sandbox.driver import State
from tests.drivers.oci.conftest import said, state_of

pytestmark = pytest.mark.oci

MIB = 1024**2
DAY = 86400.0
PLENTY = 1024 * MIB
SIZE = 300 * MIB  # more than one group of blocks, so that there is a second superblock


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    home = tmp_path / "home"
    home.mkdir()
    made = Disk(home, tmp_path / "target", SIZE, SUBUID_START)
    made.make(DiskMode.IMAGE, tmp_path / "templates")
    yield made
    made.detach()


def written(disk: Disk) -> dict[str, bytes]:
    """Some files on it, after which it is unmounted."""
    files = {f"file {number}": os.urandom(50_000) for number in range(20)}
    disk.attach()
    for name, content in files.items():
        (disk.target / "upper" / name).write_bytes(content)
    disk.detach()
    with loops.attached(disk.image, disk.home / "loop") as number:
        disks._wait_unused(loops.node(number))  # another namespace may hold it, and write its superblock, until then
    return files


def read(disk: Disk) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (disk.target / "upper").iterdir()}


def spoil(disk: Disk, how: str) -> None:
    with disk.image.open("r+b") as image:
        match how:
            case "error flag":  # and with it the checksum of the superblock
                image.seek(1024 + 0x3A)
                image.write(b"\x02\x00")
            case "group descriptors":
                image.seek(4096)
                image.write(os.urandom(4096))
            case "superblock":
                image.seek(1024)
                image.write(bytes(1024))


@pytest.mark.parametrize("how", ["error flag", "group descriptors", "superblock"])
def test_a_damaged_disk_is_repaired_with_all_files_and_a_copy_is_kept(disk: Disk, how: str) -> None:
    files = written(disk)
    spoil(disk, how)
    damaged = disk.image.read_bytes()
    disk.attach(room=PLENTY)
    assert read(disk) == files
    assert disk.before_repair.read_bytes() == damaged
    assert not disk.unrepaired.exists()
    (disk.target / "upper" / "more").write_bytes(b"more")
    found = ext4.superblock(disk.image)
    assert found is not None
    assert not found.errors


def test_a_fault_that_the_kernel_met_is_repaired_at_the_next_mount(disk: Disk) -> None:
    files = written(disk)
    disk.attach()
    controls = ext4.mounted(disk.target)
    assert controls is not None
    assert not controls.errors()
    (controls.controls / "trigger_fs_error").write_text("test")
    assert controls.errors()
    with pytest.raises(OSError, match="Read-only"):
        (disk.target / "upper" / "more").write_bytes(b"more")
    disk.detach()
    disk.attach(room=PLENTY)
    assert read(disk) == files
    assert disk.before_repair.exists()
    (disk.target / "upper" / "more").write_bytes(b"more")


def test_without_room_for_a_copy_nothing_is_changed_that_could_be_lost(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "_clone", lambda source, target: False)
    files = written(disk)
    spoil(disk, "group descriptors")
    before = disk.image.read_bytes()
    with pytest.raises(ext4.Damaged, match="when there is space"):
        disk.attach(room=0)
    assert disk.image.read_bytes() == before
    disk.attach(room=PLENTY)
    assert read(disk) == files


def test_without_room_for_a_copy_the_mere_note_of_a_fault_is_cleared(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "_clone", lambda source, target: False)
    files = written(disk)
    disk.attach()
    controls = ext4.mounted(disk.target)
    assert controls is not None
    (controls.controls / "trigger_fs_error").write_text("test")
    disk.detach()
    disk.attach(room=0)
    assert read(disk) == files
    assert not list(disks.damaged_copies(disk.home.parent))
    (disk.target / "upper" / "more").write_bytes(b"more")


def test_the_copy_is_removed_after_its_time(disk: Disk) -> None:
    written(disk)
    spoil(disk, "superblock")
    disk.attach(room=PLENTY)
    disk.detach()
    disk.attach()
    assert list(disks.damaged_copies(disk.home.parent)) == [disk.before_repair]
    for reading in (None, 5000.0, 100.0, 100 + 6.9 * DAY):  # not known, seen first, of a clock that was lost
        disk.detach()
        disk.attach(now=lambda reading=reading: reading)  # type: ignore[misc]
        assert disk.before_repair.exists()
    disk.detach()
    disk.attach(now=lambda: 100 + 7.1 * DAY)
    assert list(disk.home.glob("*repair*")) == []


def test_no_date_removes_the_copy(disk: Disk) -> None:
    """The power was cut, the machine came up in 1970, the chat was started, and then the date was set."""
    written(disk)
    spoil(disk, "superblock")
    disk.attach(room=PLENTY, now=lambda: 100.0)
    os.utime(disk.before_repair, (60, 60))
    disk.detach()
    disk.attach(now=lambda: 200.0)
    assert disk.before_repair.exists()


def test_a_second_repair_begins_the_time_of_its_copy_anew(disk: Disk) -> None:
    written(disk)
    for reading in (100.0, 6.9 * DAY):
        spoil(disk, "superblock")
        disk.attach(room=PLENTY, now=lambda reading=reading: reading)  # type: ignore[misc]
        disk.detach()
    disk.attach(now=lambda: 8 * DAY)
    assert disk.before_repair.exists()


def test_the_copy_is_on_the_disk_before_the_repair_begins(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut in the middle of a repair leaves the image as it was found, whole."""
    written(disk)
    spoil(disk, "superblock")
    events: list[str] = []
    sync_file, sync_folder, repair = durable.sync_file, durable.sync_folder, ext4.repair
    monkeypatch.setattr(durable, "sync_file", lambda path: (events.append(path.name), sync_file(path)))
    monkeypatch.setattr(durable, "sync_folder", lambda path: (events.append(path.name), sync_folder(path)))
    monkeypatch.setattr(ext4, "repair", lambda device: (events.append("repair"), repair(device)))
    disk.attach(room=PLENTY)
    assert events[:3] == ["disk.copying", disk.home.name, "repair"]


def test_the_journal_has_its_space_from_the_start(disk: Disk) -> None:
    disk.attach()
    found = ext4.superblock(disk.image)
    assert found is not None
    assert sum(length for _, length in found.journal) == 4 * MIB
    assert disk.image.stat().st_blocks * 512 > 4 * MIB


def test_what_the_host_lacks_the_disk_lacks(disk: Disk) -> None:
    disk.attach()
    controls = ext4.mounted(disk.target)
    assert controls is not None
    controls.limit_free(2 * MIB)
    file = disk.target / "upper" / "large"
    with pytest.raises(OSError) as refused:
        file.write_bytes(bytes(8 * MIB))
    assert refused.value.errno == errno.ENOSPC
    file.unlink()
    controls.write_back()
    controls.limit_free(None)
    file.write_bytes(bytes(8 * MIB))
    controls.flush()
    assert not controls.errors()


@pytest.mark.anyio
async def test_a_sandbox_whose_disk_became_read_only_is_stopped_and_the_next_start_repairs_it(driver):
    if driver.disk_mode is not DiskMode.IMAGE:
        pytest.skip("disks are limited by quota here")
    await driver.start("one", "owner")
    await said(driver, "one", "echo kept > ~/note; sync ~/note")
    target = driver._assembly.disk(driver._records.home("one"), None).target
    controls = ext4.mounted(target)
    await asyncio.to_thread((controls.controls / "trigger_fs_error").write_text, "test")  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        while "repair" not in (seen := await state_of(driver, "one")).reason:
            await asyncio.sleep(0.05)
    assert seen.state is State.FAILED
    await driver.start("one", "owner")
    assert await said(driver, "one", "echo more >> ~/note && cat ~/note") == "kept\nmore"
