"""Files of deleted sandboxes that cannot be removed keep nobody's after them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.kubernetes import removal, template
from cubicle.drivers.kubernetes.objects import Record
from cubicle.drivers.kubernetes.removal import Removal
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.machine.errors import SandboxError
from tests.drivers.kubernetes.cluster import LIMITS

TERMS = PodTerms(instance="small", image="host", limits=LIMITS)


class _Records:
    holder = "this"

    def __init__(self, *names: str) -> None:
        self.left = [Record("removed", name, holder="this") for name in names]

    async def all(self) -> list[Record]:
        return list(self.left)

    async def remove(self, record: Record) -> bool:
        self.left.remove(record)
        return True


class _Removal(Removal):
    async def _has_pods(self, sandbox: str) -> bool:
        return False

    async def _remove_files(self, sandboxes: list[str]) -> None:
        if "stuck" in sandboxes:
            raise SandboxError("The pod that removes files failed; its log has the reason.")


async def test_files_that_cannot_be_removed_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_MANY", 2)
    records: Any = _Records("one", "stuck", "two", "three", "four")
    nowhere: Any = None
    with pytest.raises(SandboxError, match="failed"):
        await _Removal(nowhere, records, TERMS).remove_now()
    assert [record.sandbox for record in records.left] == ["one", "stuck"]


def test_a_pod_that_removes_files_goes_on_after_what_it_cannot_remove(tmp_path: Path) -> None:
    (tmp_path / "stuck").write_text("no folder")
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
    program = template._REMOVE.replace("/files/", f"{tmp_path}/")
    names = ["one", "never-there", "stuck", "two"]
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["stuck"]
    assert done.returncode == 1
    assert "stuck" in done.stderr
    again = subprocess.run([sys.executable, "-c", program, "one", "two"], capture_output=True, check=False)
    assert again.returncode == 0
