"""The drivers that the one suite runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cubicle.sandbox.driver import Driver
from cubicle.sandbox.machine import Machine
from cubicle.sandbox.pool import connect, new_name
from tests.drivers.makers import MAKERS, Maker
from tests.emptying import leave


@pytest.fixture(params=MAKERS)
def make_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    """Makes driver objects over one and the same state: the second finds what the first left."""
    make: Callable[[Path], Maker] = request.param
    return make(tmp_path)


@pytest.fixture
async def driver(make_driver: Maker) -> AsyncIterator[Driver]:
    """An open driver whose sandboxes are all removed at the end."""
    driver = make_driver()
    await driver.open()
    yield driver
    await leave(driver)


@pytest.fixture
async def machine(driver: Driver) -> AsyncIterator[Machine]:
    """A machine on a sandbox that was just made."""
    name = new_name()
    await driver.start(name, "a" * 32)
    machine = await connect(driver, name)
    yield machine
    machine.close()
