"""Every way out that the proof tries is shut, on every driver that has walls, and a layer that is not there is seen."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from cubicle.drivers.memory import MemoryDriver
from cubicle.isolation import runner
from cubicle.isolation.probe import EscapeProbe
from cubicle.isolation.probes import ATTEMPTS
from cubicle.isolation.runner import ProbeVerdict, Report, Strength
from cubicle.sandbox.driver import SandboxLimits

BESIDE = {
    "a file of the host",
    "a port of the host's loopback",
    "an abstract socket of the host",
    "one of another sandbox",
    "a file of another",
}
"""What a proof tries besides the table."""


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: f"{attempt.layer}: {attempt.name}")
async def test_a_way_out_is_shut(report: Report, attempt: EscapeProbe) -> None:
    (found,) = [f for f in report.findings if (f.layer, f.attempt) == (attempt.layer, attempt.name)]
    assert found.verdict is ProbeVerdict.HOLDS, found.said


@pytest.mark.parametrize("name", sorted(BESIDE))
async def test_what_lies_next_to_a_sandbox_is_out_of_reach(report: Report, name: str) -> None:
    (found,) = [f for f in report.findings if f.attempt == name]
    assert found.verdict is ProbeVerdict.HOLDS, found.said


async def test_the_report_says_how_strong_the_walls_are(report: Report, request: pytest.FixtureRequest) -> None:
    gvisor = "runsc" in request.node.callspec.id
    assert report.strength is (Strength.GVISOR if gvisor else Strength.NAMESPACES)
    told = report.told()
    assert told["holds"] is True
    assert Report.heard(told) == report


async def test_a_sandbox_without_walls_is_found_out(tmp_path: Path) -> None:
    """The attempts can tell: the driver for tests has hardly a layer, and the report names those that are missing."""
    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        report = await runner.prove(driver, SandboxLimits(), kernel=platform.release(), exhaust=False)
    finally:
        await driver.close()
    missing = {finding.layer for finding in report.missing}
    assert {"system call filter", "host files", "network", "namespaces"} <= missing
    assert report.told()["holds"] is False
