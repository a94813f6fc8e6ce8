"""What looks after the disks of sandboxes that are up."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from cubicle.drivers.oci import disk_watches
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.disk_watches import DiskWatches
from cubicle.drivers.oci.records import OciHome, OciRecords
from cubicle.machine.errors import SandboxError


@pytest.mark.parametrize(
    "error",
    [
        SandboxError("Another program is starting, stopping or removing this sandbox."),
        OSError(errno.EIO, "Input/output error"),
    ],
)
async def test_a_damaged_sandbox_that_cannot_be_stopped_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stopped: list[str] = []

    async def stop(home: OciHome, reason: str) -> None:
        if home.name == "busy":
            raise error
        stopped.append(home.name)

    async def probe() -> None:
        pass

    monkeypatch.setattr(disk_watches, "is_up", lambda home: True)
    records = OciRecords(tmp_path)
    watches = DiskWatches(
        records, cast(Any, None), starting={"starting"}, mode=lambda: DiskMode.IMAGE, stop=stop, probe=probe
    )
    await watches._stop_damaged(["busy", "starting", "damaged"])
    assert stopped == ["damaged"]
