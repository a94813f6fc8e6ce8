"""The service with true sandboxes behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import absent
from tests.live import ground


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ground.Service]:
    async with ground.serving(ground.memory_driver(tmp_path), tmp_path) as running:
        yield running


@pytest.fixture
async def http(service: ground.Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.base, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture
def ttyd() -> None:
    if ground.ttyd_command() is None:
        absent("needs ttyd: install it, or build an image (make image)")


@pytest.fixture
def chromium() -> None:
    if ground.browser_program() is None:
        absent("needs chromium: scripts/packages test")
