"""The service and a command of the command line over one DATA_DIR: each has a driver of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from cubicle.drivers.oci import cleaning, mounts
from cubicle.drivers.oci.sandbox_lock import only_one_at
from cubicle.machine.errors import SandboxError, StartFailed
from cubicle.sandbox.trash import TrashNote
from tests.drivers.oci.conftest import said

pytestmark = [pytest.mark.anyio, pytest.mark.oci]


async def test_two_that_start_one_sandbox_at_once_both_find_it_up(make_driver):
    """`cubicle backup` starts what is stopped, and a call comes for it at that moment."""
    async with make_driver() as service, make_driver(keep=True) as command:
        await service.start("one", "owner")
        assert await said(service, "one", "echo mine > ~/kept; sync; echo ok") == "ok"
        for _ in range(3):
            await service.stop("one")
            await asyncio.gather(service.start("one", "owner"), command.start("one", "owner"))
            assert await said(service, "one", "cat ~/kept") == "mine"


async def test_one_that_is_started_while_it_is_removed_is_whole_in_the_trash(make_driver):
    async with make_driver() as service, make_driver(keep=True) as command:
        await service.start("one", "owner")
        assert await said(service, "one", "echo mine > ~/kept; sync; echo ok") == "ok"
        await service.stop("one")
        starting = asyncio.ensure_future(service.start("one", "owner"))
        await command.discard("one", TrashNote(None, "by a test", time.time()))
        with contextlib.suppress(StartFailed):  # it is in the trash
            await starting
        await service.restore("one", "owner")
        await service.start("one", "owner")
        assert await said(service, "one", "cat ~/kept") == "mine"


def test_what_is_mounted_in_a_place_that_is_cleared_stays_whole(tmp_path: Path) -> None:
    """Another program may have mounted a disk there again."""
    place = tmp_path / "place"
    for folder in ("rootfs", "disk"):
        (place / folder).mkdir(parents=True)
    (place / "user").touch()
    mounts.mount("none", place / "disk", "tmpfs", options="size=1m")
    try:
        (place / "disk" / "upper").mkdir()
        (place / "disk" / "upper" / "kept").write_text("mine")
        mounts.remove_points(place)
        assert (place / "disk" / "upper" / "kept").read_text() == "mine"
    finally:
        mounts.unmount(place / "disk")
    mounts.remove_points(place)
    assert not place.exists()


def test_what_cannot_be_unmounted_after_a_crash_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mount that is locked the kernel says that it is none."""
    stage = tmp_path / "one"
    (stage / "disk").mkdir(parents=True)
    mounts.mount("none", stage / "disk", "tmpfs", options="size=1m")
    try:
        (stage / "disk" / "kept").write_text("mine")
        with monkeypatch.context() as patch:
            patch.setattr(mounts, "unmount", lambda target: None)
            cleaning._remove_stage(stage)
        assert (stage / "disk" / "kept").read_text() == "mine"
        cleaning._remove_stage(stage)
        assert not stage.exists()
    finally:
        mounts.unmount(stage / "disk")


async def test_who_waits_for_long_is_told_so_and_others_do_not_wait(tmp_path: Path) -> None:
    async with only_one_at(tmp_path / "busy", "one"):
        with pytest.raises(SandboxError, match="Another program"):
            async with only_one_at(tmp_path / "busy", "one", 0.05):
                pass
        async with only_one_at(tmp_path / "busy", "two", 0.05):
            pass
    async with only_one_at(tmp_path / "busy", "one", 0.05):
        pass
