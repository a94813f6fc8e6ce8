"""What looks after the disks of sandboxes that are up."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
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


async def test_the_watchdog_goes_on_after_it_could_not_look_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, looks = asyncio.Event(), 0

    class Records(OciRecords):
        def homes(self) -> Iterator[OciHome]:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            yield OciHome(tmp_path / "full")

    async def stop(home: OciHome, reason: str) -> None:
        stopped.set()

    async def probe() -> None:
        pass

    monkeypatch.setattr(disk_watches, "_WATCH_SECONDS", 0.001)
    monkeypatch.setattr(disk_watches, "over_limit", lambda home: 1)
    watches = DiskWatches(
        Records(tmp_path), cast(Any, None), starting=set(), mode=lambda: DiskMode.WATCHDOG, stop=stop, probe=probe
    )
    watching = asyncio.create_task(watches._watch_disks())
    stopping = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait([watching, stopping], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert stopped.is_set()
    finally:
        watching.cancel()
        stopping.cancel()
        await asyncio.gather(watching, stopping, return_exceptions=True)
