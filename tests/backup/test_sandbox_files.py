"""Files that are written into a sandbox."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from cubicle.backup.archive_file import Member
from cubicle.backup.archive_names import HOME, Place
from cubicle.backup.sandbox_files import Unpacking, unpack
from cubicle.backup.scripts import program
from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.warm_pool import connect
from tests.support.emptying import leave


async def test_the_program_that_writes_them_waits_for_the_end_of_what_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the last byte before the thread that sent it knows: that is no failure."""
    finish = Unpacking.finish

    def finish_late(self: Unpacking) -> None:
        finish(self)
        time.sleep(1)

    def work(unpacking: Unpacking) -> None:
        unpacking.add(Member(Place(area=HOME, path="a.txt"), "a.txt", "file", 3), iter([b"abc"]))

    monkeypatch.setattr(Unpacking, "finish", finish_late)
    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        await asyncio.to_thread(program, "unpack")
        await driver.start("one", None)
        machine = await connect(driver, "one")
        await unpack(machine, work)
        assert (await machine.output("cat ~/a.txt"))[1] == b"abc"
        machine.close()
    finally:
        await leave(driver)


async def test_links_come_into_folders_that_nobody_may_write(tmp_path: Path) -> None:
    """Links come behind all folders. One such chat would keep every chat behind it in the backup from coming back."""
    members = [
        Member(Place(area=HOME, path="store/a.txt"), "a.txt", "file", 3, 0o444),
        Member(Place(area=HOME, path="store"), "store", "directory", mode=0o555, mtime=1_600_000_000),
        Member(Place(area=HOME, path="store/link"), "link", "link", target="a.txt"),
    ]

    def work(unpacking: Unpacking) -> None:
        for member in members:
            unpacking.add(member, iter([b"abc"] if member.size else []))

    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        await driver.start("one", None)
        machine = await connect(driver, "one")
        await unpack(machine, work)
        assert (await machine.output("cat ~/store/link; stat -c ' %a %Y' ~/store"))[1] == b"abc 555 1600000000\n"
        machine.close()
    finally:
        await leave(driver)


async def test_what_is_written_takes_the_place_of_what_a_new_sandbox_has(tmp_path: Path) -> None:
    """The image makes files and folders in each home; somebody may have had others of the same names."""
    members = [
        Member(Place(area=HOME, path=".bashrc/a.txt"), "a.txt", "file", 3),
        Member(Place(area=HOME, path=".profile"), ".profile", "directory"),
        Member(Place(area=HOME, path=".local"), ".local", "file", 3),
        Member(Place(area=HOME, path=".cache"), ".cache", "link", target=".local"),
    ]

    def work(unpacking: Unpacking) -> None:
        for member in members:
            unpacking.add(member, iter([b"abc"] if member.size else []))

    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        await driver.start("one", None)
        machine = await connect(driver, "one")
        await machine.output("cd ~; touch .bashrc .profile; mkdir -p .local/lib .cache/x")
        await unpack(machine, work)
        assert (await machine.output("cd ~; cat .bashrc/a.txt .local .cache; ls -d .profile/"))[1] == (
            b"abcabcabc.profile/\n"
        )
        machine.close()
    finally:
        await leave(driver)
