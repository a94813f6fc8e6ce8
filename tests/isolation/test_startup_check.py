"""When walls are tried, what is kept of it, and what a missing one does to the service."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cubicle.isolation import runner, startup_check
from cubicle.isolation.probe import PRELUDE, EscapeProbe
from cubicle.isolation.runner import Finding, ProbeVerdict, Report, Strength
from cubicle.isolation.startup_check import IsolationReport, StartupCheck
from cubicle.machine.errors import NoSpace, StartFailed, Unusable
from cubicle.settings import RequireIsolation, Settings

GOOD = Report(
    Strength.NAMESPACES,
    (Finding("mounts", "mount", ProbeVerdict.HOLDS), Finding("disk", "fill", ProbeVerdict.WEAK, "x")),
)
BAD = Report(Strength.NAMESPACES, (Finding("mounts", "mount", ProbeVerdict.MISSING, "DONE"),))


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
    first, second = (StartupCheck(settings(tmp_path), prover) for _ in range(2))
    await first.check()
    await second.check()
    assert prover.calls == 1
    assert second.proof is not None
    assert second.proof.report == GOOD
    await StartupCheck(settings(tmp_path, oci_runtime="runsc"), prover).check()
    assert prover.calls == 2


async def test_another_version_of_the_runtime_is_tried_anew_also_where_it_was_asked_for(tmp_path: Path) -> None:
    runtime, prover = tmp_path / "crun", Prover(GOOD)
    runtime.touch(mode=0o755)
    for version in (1, 1, 2):
        os.utime(runtime, (version, version))
        await StartupCheck(settings(tmp_path, oci_runtime=str(runtime)), prover).check()
    assert prover.calls == 2


def test_runtimes_are_looked_for_where_the_driver_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever became root by `su` has no /usr/sbin in his PATH, where Debian has runc."""
    before = startup_check.file_of(settings(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("crun", "runc"):
        (tmp_path / name).touch(mode=0o755)
    assert startup_check.file_of(settings(tmp_path)) == before


async def test_on_a_full_disk_the_walls_are_tried_later(tmp_path: Path) -> None:
    prover = Prover(NoSpace("The host is short of disk space."))
    startup_check = StartupCheck(settings(tmp_path), prover)
    await startup_check.check()
    assert (startup_check.postponed, startup_check.proof) == (True, None)
    prover.report = BAD
    with pytest.raises(Unusable):
        await startup_check.check()
    prover.report = GOOD
    await startup_check.check()
    assert not startup_check.postponed
    assert startup_check.proof is not None


async def test_what_was_not_checked_is_said_at_each_start_and_does_not_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    far = Report(
        Strength.NAMESPACES, (Finding("host files", "a file of the host", ProbeVerdict.UNCHECKED, "elsewhere"),)
    )
    prover = Prover(far)
    for count in (1, 2):
        startup_check = StartupCheck(settings(tmp_path, driver="docker"), prover)
        await startup_check.check()
        assert prover.calls == count
        assert startup_check.proof is not None
        assert startup_check.proof.report.told()["holds"] is False
        assert caplog.text.count("isolation not checked") == count
    assert "a file of the host (host files)" in caplog.text


async def test_an_old_proof_is_made_anew(tmp_path: Path) -> None:
    file = await asyncio.to_thread(startup_check.file_of, settings(tmp_path))
    await asyncio.to_thread(startup_check.keep, file, IsolationReport(GOOD, time.time() - 8 * 86400))
    prover = Prover(GOOD)
    await StartupCheck(settings(tmp_path), prover).check()
    assert prover.calls == 1


@pytest.mark.parametrize(
    "content", ["", "[]", '{"at": 1}', '{"at": "x", "report": {"findings": [], "strength": "odd"}}']
)
def test_a_broken_proof_counts_as_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "proof.json"
    file.write_text(content)
    assert startup_check.kept(file) is None


@pytest.mark.parametrize("report", [BAD, StartFailed("no room")])
async def test_a_missing_layer_keeps_the_service_from_starting(tmp_path: Path, report: Report | Exception) -> None:
    with pytest.raises(Unusable, match="cubicle doctor --prove"):
        await StartupCheck(settings(tmp_path), Prover(report)).check()
    await StartupCheck(settings(tmp_path, require_walls="warn"), Prover(report)).check()
    with pytest.raises(Unusable):
        await StartupCheck(settings(tmp_path, require_walls="enforce"), Prover(report)).check()


async def test_a_bad_proof_is_tried_again_at_the_next_start(tmp_path: Path) -> None:
    with pytest.raises(Unusable):
        await StartupCheck(settings(tmp_path), Prover(BAD)).check()
    await StartupCheck(settings(tmp_path), Prover(GOOD)).check()


async def test_the_driver_for_tests_promises_nothing_and_is_not_tried(tmp_path: Path) -> None:
    prover = Prover(BAD)
    startup_check = StartupCheck(settings(tmp_path, driver="memory"), prover, isolates=False)
    await startup_check.check()
    assert (prover.calls, startup_check.proof) == (0, None)


@pytest.mark.parametrize(
    ("driver", "asked", "demanded"),
    [
        ("oci", "auto", RequireIsolation.ENFORCE),
        ("docker", "auto", RequireIsolation.ENFORCE),
        ("memory", "auto", RequireIsolation.WARN),
        ("oci", "warn", RequireIsolation.WARN),
        ("memory", "enforce", RequireIsolation.ENFORCE),
    ],
)
def test_what_is_demanded(tmp_path: Path, driver: str, asked: str, demanded: RequireIsolation) -> None:
    assert startup_check.demanded(settings(tmp_path, driver=driver, require_walls=asked)) is demanded


@pytest.mark.parametrize(("name", "answer"), [("a-name-that-nothing-has", "ENOENT"), (sys.executable, "FOUND")])
def test_a_process_that_ends_while_it_is_looked_at_opens_no_layer(name: str, answer: str) -> None:
    source = EscapeProbe("processes", "one of another sandbox", runner._LOOK % name, frozenset()).source
    listed = "listed = os.listdir\nos.listdir = lambda path: ['99999999', *listed(path)]"
    program = [sys.executable, "-c", "\n".join([PRELUDE, listed, source])]
    assert subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout == f"{answer}\n"
