"""One fleet for the folder's tests; a service of the usual kind over it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.sandbox.fleet import Fleet
from tests.support.service import Service, fleet_of, service_of


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    async with fleet_of(folder) as fleet:
        yield fleet


@pytest.fixture(scope="module")
async def service(fleet: Fleet) -> AsyncIterator[Service]:
    async with service_of(fleet) as service:
        yield service
