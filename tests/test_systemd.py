"""The unit of systemd: it is valid, and its options keep the sandboxes."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from cubicle.settings import Settings
from tests.conftest import absent

UNIT = Path(__file__).parents[1] / "deploy/systemd/cubicle.service"
MOUNT_NAMESPACE = (
    *("PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateUsers", "ProtectSystem", "ProtectHome", "RootDirectory"),
    *("ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups", "ReadOnlyPaths", "ReadWritePaths"),
    *("InaccessiblePaths", "TemporaryFileSystem", "BindPaths", "MountFlags", "DynamicUser", "ProtectProc"),
)
"""Options that give a service a mount namespace of its own."""


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(UNIT)
    return found


def test_only_the_service_is_killed(unit: configparser.ConfigParser) -> None:
    assert unit["Service"]["KillMode"] == "process"
    assert not set(unit["Service"]) & set(MOUNT_NAMESPACE)
    assert "SendSIGKILL" not in unit["Service"]


def test_it_starts_again_after_a_failure_and_has_time_to_build(unit: configparser.ConfigParser) -> None:
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Service"]["TimeoutStartSec"] == "infinity"
    assert unit["Service"]["ExecStart"].endswith("cubicle serve --yes")


def test_running_calls_have_their_time_to_end(unit: configparser.ConfigParser) -> None:
    drain: float = Settings.model_fields["drain_seconds"].default
    assert int(unit["Service"]["TimeoutStopSec"]) >= drain + 15


def test_systemd_takes_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        absent("needs systemd-analyze: scripts/packages test")
    program = tmp_path / "cubicle"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "cubicle.service"
    copy.write_text(UNIT.read_text().replace("/usr/local/bin/cubicle", str(program)))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in found.stderr.splitlines() if "cubicle" in line]
    assert (found.returncode, complaints) == (0, []), found.stderr
