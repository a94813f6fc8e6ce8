"""Which runtime is taken on this host, and how one is called."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cubicle.drivers.oci import host, mounts, runtimes
from cubicle.drivers.oci.runtimes import Runtime
from tests.conftest import absent
from tests.drivers.oci.conftest import Make, said

pytestmark = [pytest.mark.anyio, pytest.mark.oci]


def test_of_those_that_are_installed_crun_is_first(tmp_path: Path) -> None:
    found = [runtime.name for runtime in runtimes.find("", tmp_path)]
    assert found == [name for name in ("crun", "runc", "runsc") if name in found]


async def test_crun_is_taken_unasked_where_it_works(make_driver: Make, tmp_path: Path) -> None:
    if not await asyncio.to_thread(runtimes.find, "crun", tmp_path):
        absent("needs crun: scripts/packages test")
    async with make_driver() as driver:
        assert driver.runtime.name == "crun"


async def test_one_that_starts_no_container_here_is_passed_over(
    make_driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(wanted: str, stage: Path) -> list[Runtime]:
        return [Runtime("/usr/bin/false", "one that fails", stage), *runtimes.find(wanted, stage)]

    monkeypatch.setattr(host, "find", found)
    async with make_driver() as driver:
        assert driver.runtime.name in ("crun", "runc")
        await driver.start("one", None)
        assert await said(driver, "one", "echo here") == "here"


async def test_a_covered_folder_is_empty_for_the_program_alone(tmp_path: Path) -> None:
    folder, seen = tmp_path / "covered", tmp_path / "seen"
    folder.mkdir()
    (folder / "file").touch()

    def start() -> int:
        argv = ["/bin/sh", "-c", f"ls -A {folder} >{seen}; touch {folder}/its-own; exit 3"]
        return os.posix_spawn("/bin/sh", argv, {})

    pid = await asyncio.wrap_future(mounts.run_without(folder, start))
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    assert seen.read_text() == ""
    assert os.listdir(folder) == ["file"]
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


async def test_what_cannot_be_covered_starts_nothing(tmp_path: Path) -> None:
    def start() -> int:
        raise AssertionError("it was started")

    with pytest.raises(FileNotFoundError):
        await asyncio.wrap_future(mounts.run_without(tmp_path / "nothing", start))
