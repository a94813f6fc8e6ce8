from collections.abc import AsyncIterator

import pytest

from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.ledger import Ledger


@pytest.fixture
async def fleet(tmp_path) -> AsyncIterator[Fleet]:
    """Sandboxes with the true guest, all removed at the end."""
    driver = MemoryDriver(tmp_path / "sandboxes")
    async with Fleet(driver, Ledger(tmp_path / "ledger"), pool_size=0) as fleet:
        yield fleet
        for seen in await driver.running():
            await driver.delete(seen.name)
