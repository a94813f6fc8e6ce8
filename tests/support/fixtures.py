"""One fleet for the tests of a module, and a service of the usual kind over it: a conftest imports what it wants."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cubicle.sandbox.fleet import Fleet
from tests.support.service import Service, fleet_of, service_of


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with fleet_of(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
async def service(fleet: Fleet) -> AsyncIterator[Service]:
    async with service_of(fleet) as service:
        yield service
