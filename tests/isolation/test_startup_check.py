"""When walls are tried, what is kept of it, and what a missing one does to the service."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cubicle.isolation import runner, startup_check
from cubicle.isolation.probe import PRELUDE, Attempt
from cubicle.isolation.runner import Finding, Report, Strength, Verdict
from cubicle.isolation.startup_check import Proof, Warden
from cubicle.machine.errors import NoSpace, StartFailed, Unusable
from cubicle.settings import RequireWalls, Settings

GOOD = Report(
    Strength.NAMESPACES, (Finding("mounts", "mount", Verdict.HOLDS), Finding("disk", "fill", Verdict.WEAK, "x"))
)
BAD = Report(Strength.NAMESPACES, (Finding("mounts", "mount", Verdict.MISSING, "DONE"),))


class Prover:
    def __init__(self, report: Report | Exception) -> None:
        self.report = report
        self.calls = 0

    async def __call__(self) -> Report:
        self.calls += 1
        if isinstance(self.report, Exception):
            raise self.report
        return self.report


def settings(folder: Path, **fields: object) -> Settings:
    return Settings(image_dir=folder, data_dir=folder / "data", **{"driver": "oci", **fields})  # type: ignore[arg-type]


async def test_walls_are_tried_once_and_the_outcome_is_kept(tmp_path: Path) -> None:
    prover = Prover(GOOD)
    first, second = (Warden(settings(tmp_path), prover) for _ in range(2))
    await first.check()
    await second.check()
    assert prover.calls == 1
    assert second.proof is not None
    assert second.proof.report == GOOD
    await Warden(settings(tmp_path, oci_runtime="runsc"), prover).check()
    assert prover.calls == 2


async def test_on_a_full_disk_the_walls_are_tried_later(tmp_path: Path) -> None:
    prover = Prover(NoSpace("The host is short of disk space."))
    warden = Warden(settings(tmp_path), prover)
    await warden.check()
    assert (warden.postponed, warden.proof) == (True, None)
    prover.report = BAD
    with pytest.raises(Unusable):
        await warden.check()
    prover.report = GOOD
    await warden.check()
    assert not warden.postponed
    assert warden.proof is not None


async def test_what_was_not_checked_is_said_at_each_start_and_does_not_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    far = Report(Strength.NAMESPACES, (Finding("host files", "a file of the host", Verdict.UNCHECKED, "elsewhere"),))
    prover = Prover(far)
    for count in (1, 2):
        warden = Warden(settings(tmp_path, driver="docker"), prover)
        await warden.check()
        assert prover.calls == count
        assert warden.proof is not None
        assert warden.proof.report.told()["holds"] is False
        assert caplog.text.count("isolation not checked") == count
    assert "a file of the host (host files)" in caplog.text


async def test_an_old_proof_is_made_anew(tmp_path: Path) -> None:
    file = await asyncio.to_thread(startup_check.file_of, settings(tmp_path))
    await asyncio.to_thread(startup_check.keep, file, Proof(GOOD, time.time() - 8 * 86400))
    prover = Prover(GOOD)
    await Warden(settings(tmp_path), prover).check()
    assert prover.calls == 1


@pytest.mark.parametrize(
    "content", ["", "[]", '{"at": 1}', '{"at": "x", "report": {"findings": [], "strength": "odd"}}']
)
def test_a_broken_proof_counts_as_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "proof.json"
    file.write_text(content)
    assert startup_check.kept(file) is None


@pytest.mark.parametrize("report", [BAD, StartFailed("no room")])
async def test_a_missing_wall_keeps_the_service_from_starting(tmp_path: Path, report: Report | Exception) -> None:
    with pytest.raises(Unusable, match="cubicle doctor --prove"):
        await Warden(settings(tmp_path), Prover(report)).check()
    await Warden(settings(tmp_path, require_walls="warn"), Prover(report)).check()
    with pytest.raises(Unusable):
        await Warden(settings(tmp_path, require_walls="enforce"), Prover(report)).check()


async def test_a_bad_proof_is_tried_again_at_the_next_start(tmp_path: Path) -> None:
    with pytest.raises(Unusable):
        await Warden(settings(tmp_path), Prover(BAD)).check()
    await Warden(settings(tmp_path), Prover(GOOD)).check()


async def test_the_driver_for_tests_promises_nothing_and_is_not_tried(tmp_path: Path) -> None:
    prover = Prover(BAD)
    warden = Warden(settings(tmp_path, driver="memory"), prover, isolates=False)
    await warden.check()
    assert (prover.calls, warden.proof) == (0, None)


@pytest.mark.parametrize(
    ("driver", "asked", "demanded"),
    [
        ("oci", "auto", RequireWalls.ENFORCE),
        ("docker", "auto", RequireWalls.ENFORCE),
        ("memory", "auto", RequireWalls.WARN),
        ("oci", "warn", RequireWalls.WARN),
        ("memory", "enforce", RequireWalls.ENFORCE),
    ],
)
def test_what_is_demanded(tmp_path: Path, driver: str, asked: str, demanded: RequireWalls) -> None:
    assert startup_check.demanded(settings(tmp_path, driver=driver, require_walls=asked)) is demanded


@pytest.mark.parametrize(("name", "answer"), [("a-name-that-nothing-has", "ENOENT"), (sys.executable, "FOUND")])
def test_a_process_that_ends_while_it_is_looked_at_opens_no_wall(name: str, answer: str) -> None:
    source = Attempt("processes", "one of another sandbox", runner._LOOK % name, frozenset()).source
    listed = "listed = os.listdir\nos.listdir = lambda path: ['99999999', *listed(path)]"
    program = [sys.executable, "-c", "\n".join([PRELUDE, listed, source])]
    assert subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout == f"{answer}\n"
