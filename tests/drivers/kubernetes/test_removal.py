"""Files of deleted sandboxes that cannot be removed keep nobody's after them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.kubernetes import removal, sweeper, template
from cubicle.drivers.kubernetes.objects import Record, age
from cubicle.drivers.kubernetes.removal import Removal
from cubicle.drivers.kubernetes.sweeper import Sweeper
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


async def test_what_nobody_foresaw_ends_neither_the_removal_nor_the_sweeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the files of deleted sandboxes would stay until the service starts again."""
    nowhere: Any = None
    turns = {"removal": 0, "sweeper": 0}
    both = asyncio.Event()

    def turn(which: str) -> None:
        turns[which] += 1
        if min(turns.values()) > 1:
            both.set()
        raise KeyError("no such field")

    class Removing(Removal):
        async def remove_now(self, others_after: float | None = None) -> int:
            self._wanted.set()
            turn("removal")
            return 0

    class Sweeping(Sweeper):
        async def hold(self) -> bool:
            turn("sweeper")
            return False

    monkeypatch.setattr(removal, "_REST_SECONDS", 0.01)
    monkeypatch.setattr(sweeper, "_RENEW_SECONDS", 0.01)
    removing = Removing(nowhere, nowhere, TERMS)
    sweeping = Sweeping(nowhere, nowhere, nowhere, TERMS, removing, nowhere)
    removing.start()
    sweeping.start()
    try:
        async with asyncio.timeout(10):
            await both.wait()
    finally:
        for one in (removing, sweeping):
            assert one._task is not None
            one._task.cancel()
            await asyncio.wait([one._task])


def test_a_date_without_a_time_zone_is_of_no_age() -> None:
    assert age({"metadata": {"creationTimestamp": "2020-01-01T00:00:00"}}) == 0.0
    assert age({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}) > 0.0


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
