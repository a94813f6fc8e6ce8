"""What a new sandbox has in its skills folder before it starts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cubicle.drivers.oci import disk, filled_template
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.driver import OciDriver
from cubicle.drivers.oci.filled_template import FilledTemplates
from cubicle.machine.machine import Machine
from cubicle.prompt.catalogue import SkillCatalogue
from cubicle.prompt.provision import Provisioner, initial_files
from cubicle.sandbox.initial_files import InitialFile, InitialFiles
from tests.drivers.oci.conftest import Make, machine_of, said

pytestmark = [pytest.mark.anyio, pytest.mark.oci]

LIST = "cd /mnt/skills && find . -printf '%p %y %m %U %G\\n' | sort && find . -type f | sort | xargs sha256sum"


def files(*names: str, version: str = "1") -> Callable[[], InitialFiles]:
    return lambda: InitialFiles(version, lambda: tuple(InitialFile(name, name.encode(), 0o644) for name in names))


def templates(driver: OciDriver) -> list[str]:
    return sorted(path.name for path in (driver._records.root / "templates").glob("ext4-*-*-*.img"))


async def test_they_are_there_as_if_they_had_been_laid_out_in_the_running_sandbox(
    make_driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SkillCatalogue()
    provisioner = Provisioner(library, None)  # type: ignore[arg-type]
    async with make_driver() as driver:
        await driver.start("plain", None)
        async with machine_of(driver, "plain") as machine:
            await provisioner.dress(machine)
        expected = await said(driver, "plain", LIST)
        await driver.delete("plain")
        assert driver.disk_mode is not DiskMode.IMAGE or templates(driver) == []
    async with make_driver(initial=partial(initial_files, library)) as driver:
        if driver.disk_mode is not DiskMode.IMAGE:
            pytest.skip("disks are folders here")
        await driver.start("filled", None)
        assert await said(driver, "filled", LIST) == expected

        async def refuse(*ignored: object, **named: object) -> None:
            raise AssertionError("it was written again")

        monkeypatch.setattr(Machine, "write", refuse)
        async with machine_of(driver, "filled") as machine:
            await provisioner.dress(machine)
        assert len(templates(driver)) == 1


async def test_they_are_each_sandboxs_own_and_outlive_a_stop(make_driver: Make) -> None:
    async with make_driver(initial=files("public/a/SKILL.md")) as driver:
        if driver.disk_mode is not DiskMode.IMAGE:
            pytest.skip("disks are folders here")
        for name in ("one", "two"):
            await driver.start(name, name)
        async with machine_of(driver, "one") as machine:
            await machine.write("/mnt/skills/public/a/SKILL.md", b"changed", as_root=True, roots=("/mnt/skills",))
        await driver.stop("one")
        await driver.start("one", None)
        assert await said(driver, "one", "cat /mnt/skills/public/a/SKILL.md") == "changed"
        assert await said(driver, "two", "cat /mnt/skills/public/a/SKILL.md") == "public/a/SKILL.md"
        assert await said(driver, "two", "rm -r /mnt/skills/public 2>&1 | tail -n 1; touch /mnt/skills/x 2>&1") != ""
        assert await said(driver, "two", "ls /mnt/skills") == "public"


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "public/../../outside"])
async def test_a_path_out_of_the_folder_fills_nothing(make_driver: Make, tmp_path: Path, name: str) -> None:
    async with make_driver(initial=files(name)) as driver:
        await driver.start("one", None)
        assert await said(driver, "one", "ls -A /mnt/skills") == ""
        assert templates(driver) == []
        assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("outside")))


async def test_what_cannot_be_read_any_more_fills_nothing(make_driver: Make) -> None:
    def fails() -> InitialFiles:
        raise OSError("it is gone")

    def changed() -> tuple[InitialFile, ...]:
        raise ValueError("it has changed")

    for source in (fails, lambda: InitialFiles("1", changed)):
        async with make_driver(initial=source) as driver:
            await driver.start("one", None)
            assert await said(driver, "one", "ls -A /mnt/skills") == ""
            await driver.delete("one")


async def test_whoever_waits_for_one_that_cannot_be_made_does_not_try_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight starts at a time, each of them with a minute of mkfs after the other, would hold up all sandboxes."""
    filled, tries, go_on = FilledTemplates(files("a")), 0, threading.Event()

    def fails(*ignored: object) -> Path:
        nonlocal tries
        tries += 1
        go_on.wait(30)
        raise OSError("it cannot be made")

    monkeypatch.setattr(disk, "template", fails)
    finding = [asyncio.create_task(asyncio.to_thread(filled.find, tmp_path, 1, 1)) for _ in range(4)]
    while not tries:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)  # the others come to it
    go_on.set()
    assert await asyncio.gather(*finding) == [None] * 4
    assert tries == 1


async def test_nobody_waits_for_long_until_another_start_has_made_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filled_template, "_WAIT_SECONDS", 0.01)
    filled, made, go_on = FilledTemplates(files("a")), tmp_path / "made", threading.Event()
    made.touch()

    def slow(*ignored: object) -> Path:
        go_on.wait(30)
        return made

    monkeypatch.setattr(disk, "template", slow)
    first = asyncio.create_task(asyncio.to_thread(filled.find, tmp_path, 1, 1))
    while not filled._making.locked():
        await asyncio.sleep(0.001)
    try:
        assert await asyncio.wait_for(asyncio.to_thread(filled.find, tmp_path, 1, 1), 10) is None
        assert not first.done()
    finally:
        go_on.set()
    assert await first == made
    assert await asyncio.to_thread(filled.find, tmp_path, 1, 1) == made


def test_another_version_is_another_template_and_an_old_one_goes(tmp_path: Path) -> None:
    size = 64 * 1024**2
    first = FilledTemplates(files("a")).find(tmp_path, size, 1)
    second = FilledTemplates(files("a", "b", version="2")).find(tmp_path, size, 1)
    assert first is not None
    assert second not in (None, first)
    assert FilledTemplates(files("a")).find(tmp_path, size, 1) == first
    os.utime(first, (1, 1))
    assert FilledTemplates(files("a", "b", version="2")).find(tmp_path, size, 1) == second
    assert sorted(tmp_path.iterdir()) == [second]
