"""Sandboxes of every driver that has walls, to be broken out of."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cubicle.isolation import runner
from cubicle.isolation.runner import Report
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver, SandboxLimits
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.makers import ISOLATING, Maker
from tests.support.emptying import leave

# What lies beside a pod is on a network, and tried by tests/drivers/kubernetes/test_real_cluster.py.
WALLED = [maker for maker in ISOLATING if maker.id != "kubernetes"]


@pytest.fixture(scope="module", params=WALLED)
async def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Driver]:
    """One open driver for a whole file of attempts."""
    make: Callable[[Path], Maker] = request.param
    opened = (await asyncio.to_thread(make, tmp_path_factory.mktemp("escape")))()
    await opened.open()
    yield opened
    await leave(opened)


@pytest.fixture(scope="module")
async def report(driver: Driver) -> Report:
    """What a proof finds."""
    return await runner.prove(driver, SandboxLimits(), kernel=platform.release(), exhaust=False)


@pytest.fixture
async def machine(driver: Driver) -> AsyncIterator[Machine]:
    """A sandbox of the test's own."""
    name = new_name()
    await driver.start(name, os.urandom(16).hex())
    machine = await connect(driver, name)
    yield machine
    machine.close()
    await driver.delete(name)
