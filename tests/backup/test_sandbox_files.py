"""Files that are written into a sandbox."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from cubicle.backup.archive_file import Member
from cubicle.backup.archive_names import Place
from cubicle.backup.sandbox_files import HOME, Unpacking, unpack
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
