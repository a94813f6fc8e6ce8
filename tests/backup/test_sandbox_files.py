"""Files that are written into a sandbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.backup.archive_file import Member
from cubicle.backup.archive_names import HOME, Place
from cubicle.backup.sandbox_files import Unpacking, unpack
from cubicle.backup.scripts import program
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.machine import Machine
from cubicle.sandbox.warm_pool import connect
from tests.support.emptying import leave


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        await asyncio.to_thread(program, "unpack")
        await driver.start("one", None)
        machine = await connect(driver, "one")
        yield machine
        machine.close()
    finally:
        await leave(driver)


async def written(machine: Machine, *members: Member) -> None:
    """Each file of three bytes holds `abc`."""

    def work(unpacking: Unpacking) -> None:
        for member in members:
            unpacking.add(member, iter([b"abc"] if member.size else []))

    await unpack(machine, work)


def at(path: str, kind: str, size: int = 0, mode: int = 0o644, mtime: float = 0.0, target: str = "") -> Member:
    return Member(Place(area=HOME, path=path), path, kind, size, mode, mtime, target)


async def test_the_program_that_writes_them_waits_for_the_end_of_what_it_is_sent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the last byte before the thread that sent it knows: that is no failure."""
    finish = Unpacking.finish

    def finish_late(self: Unpacking) -> None:
        finish(self)
        time.sleep(1)

    monkeypatch.setattr(Unpacking, "finish", finish_late)
    await written(machine, at("a.txt", "file", 3))
    assert (await machine.output("cat ~/a.txt"))[1] == b"abc"


async def test_links_come_into_folders_that_nobody_may_write(machine: Machine) -> None:
    """Links come behind all folders. One such chat would keep every chat behind it in the backup from coming back."""
    await written(
        machine,
        at("store/a.txt", "file", 3, 0o444),
        at("store", "directory", mode=0o555, mtime=1_600_000_000),
        at("store/link", "link", target="a.txt"),
    )
    assert (await machine.output("cat ~/store/link; stat -c ' %a %Y' ~/store"))[1] == b"abc 555 1600000000\n"


async def test_what_is_written_takes_the_place_of_what_a_new_sandbox_has(machine: Machine) -> None:
    """The image makes files and folders in each home; somebody may have had others of the same names."""
    await machine.output("cd ~; touch .bashrc .profile; mkdir -p .local/lib .cache/x")
    await written(
        machine,
        at(".bashrc/a.txt", "file", 3),
        at(".profile", "directory"),
        at(".local", "file", 3),
        at(".cache", "link", target=".local"),
    )
    found = await machine.output("cd ~; cat .bashrc/a.txt .local .cache; ls -d .profile/")
    assert found[1] == b"abcabcabc.profile/\n"
