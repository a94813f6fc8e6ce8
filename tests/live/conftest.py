"""The service with true sandboxes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cubicle.http_api.bridge import Limits
from tests.conftest import absent
from tests.live import ground


@pytest.fixture(scope="module", params=["memory", pytest.param("oci", marks=pytest.mark.oci)])
async def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ground.Service]:
    """One service for all tests of a file; every test takes chats of its own."""
    folder = tmp_path_factory.mktemp("service")
    driver = await asyncio.to_thread(ground.DRIVERS[request.param], folder)
    async with ground.serving(driver, folder) as running:
        yield running


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[ground.Service]:
    """A service that pings often and soon loses patience."""
    limits = Limits(most=64 * 1024, idle=3.0, silence=0.4)
    often = {"ws_ping_interval": 0.5, "ws_ping_timeout": 0.5}
    async with ground.serving(ground.memory_driver(tmp_path), tmp_path, limits=limits, **often) as running:
        yield running


@pytest.fixture(scope="module")
async def http(service: ground.Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.base, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def ttyd() -> None:
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")


@pytest.fixture(scope="session")
def chromium() -> None:
    if ground.browser_program() is None:
        absent("needs chromium: scripts/packages test")
