"""A guest is waited for while it loads, and not for ever."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.errors import Gone
from cubicle.sandbox.warm_pool import connect
from tests.support.emptying import leave


async def test_a_guest_that_loads_slowly_is_waited_for(tmp_path: Path) -> None:
    driver = MemoryDriver(tmp_path)
    await driver.open()
    try:
        await driver.start("slow", None)
        holder = int((tmp_path / "memory" / "slow" / "pid").read_text().split()[0])
        guest = int(Path(f"/proc/{holder}/task/{holder}/children").read_text())
        os.kill(guest, signal.SIGSTOP)  # as one that has not got its turn yet: its socket is there
        with pytest.raises(Gone, match=r"did not answer within 0\.5 s"):
            await connect(driver, "slow", patience=0.5)
        waiting = asyncio.create_task(connect(driver, "slow"))
        await asyncio.wait([waiting], timeout=0.5)
        assert not waiting.done()
        os.kill(guest, signal.SIGCONT)
        (await waiting).close()
    finally:
        await leave(driver)
