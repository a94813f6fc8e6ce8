"""The guest stays as small as it is, however many calls it serves. CUBICLE_LONG=1 makes 20,000 of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.warm_pool import connect
from tests.support.emptying import leave

LONG = bool(os.environ.get("CUBICLE_LONG"))
WARM_UP, CALLS = (10_000, 20_000) if LONG else (1_500, 750)
BOUND = 20 if LONG else 200
"""Bytes a call. What the allocator has not yet used of its arenas comes on top of what the guest keeps."""


def private_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("Private_Dirty:")[1].split()[0]) * 1024


@pytest.mark.real
@pytest.mark.timeout(900)
async def test_calls_leave_nothing_in_the_guest(tmp_path: Path) -> None:
    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        await driver.start("one", None)
        machine = await connect(driver, "one")
        holder = int((tmp_path / "memory" / "one" / "pid").read_text().split()[0])
        guest = int(Path(f"/proc/{holder}/task/{holder}/children").read_text())
        for _ in range(WARM_UP):
            await machine.output(":", timeout=3600)
        before = private_bytes(guest)
        for _ in range(CALLS):
            await machine.output(":", timeout=3600)
        grown = private_bytes(guest) - before
        machine.close()
    finally:
        await leave(driver)
    assert grown < CALLS * BOUND, f"{grown / CALLS:.0f} bytes a call"
