"""The drivers that the one suite runs on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.makers import ALIKE, MAKERS, Maker
from tests.support.emptying import leave
from tests.support.small_cluster import Running

# Whoever is killed may take its time to die, and would be seen by the next test.
_CLEAN = """
others() { for each in /proc/[0-9]*; do [ -O $each ] && [ $each != /proc/$$ ] && return; done; return 1; }
kill -KILL -1; while others && [ $SECONDS -lt 30 ]; do :; done
chmod -Rf u+rwX ~/*; rm -rf ~/* /tmp/* /mnt/user-data/outputs/*
"""


def pytest_sessionfinish() -> None:
    Running.stop_all()


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


class House:
    """A driver with one sandbox, which a whole file of tests uses one after the other."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._name = ""

    async def machine(self) -> Machine:
        if not self._name:
            self._name = new_name()
            await self.driver.start(self._name, os.urandom(16).hex())
        return await connect(self.driver, self._name)

    async def clean(self) -> None:
        """Leave nothing to the next test: no process, no file. What cannot be cleaned is thrown away."""
        try:
            async with asyncio.timeout(60):
                machine = await connect(self.driver, self._name)
                await machine.output(_CLEAN)
                machine.close()
        except (SandboxError, TimeoutError):
            await self.driver.delete(self._name)
            self._name = ""


@pytest.fixture(scope="module", params=ALIKE)
async def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    make: Callable[[Path], Maker] = request.param
    driver = (await asyncio.to_thread(make, tmp_path_factory.mktemp("house")))()
    await driver.open()
    yield House(driver)
    for seen in await driver.list():
        await driver.delete(seen.name)
    await driver.close()


@pytest.fixture
async def machine(house: House) -> AsyncIterator[Machine]:
    """A machine without files and processes of anybody."""
    machine = await house.machine()
    yield machine
    machine.close()
    await house.clean()
