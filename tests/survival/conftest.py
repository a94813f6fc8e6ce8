"""A service on the embedded driver, in a process of its own; nothing of it is left when the test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cubicle import settings
from cubicle.images.store import ImageStore
from tests.drivers.makers import some_base
from tests.support.process import ServiceProcess


@pytest.fixture(scope="session")
def image() -> str:
    return some_base(ImageStore(settings.load().image_dir)).digest


@pytest.fixture
def after(tmp_path: Path, image: str) -> settings.Settings:
    """The settings by which the sandboxes are found again and removed."""
    return settings.load(data_dir=tmp_path / "data", sandbox_image=image)


@pytest.fixture
def options() -> dict[str, str]:
    """Settings of the service that a file of tests wants otherwise."""
    return {}


@pytest.fixture
async def service(tmp_path: Path, image: str, options: dict[str, str]) -> AsyncIterator[ServiceProcess]:
    async with serving(tmp_path, image, options) as running:
        yield running


@pytest.fixture(scope="module")
async def lasting(tmp_path_factory: pytest.TempPathFactory, image: str) -> AsyncIterator[ServiceProcess]:
    """One service that has to bear everything that a file of tests does to it."""
    async with serving(tmp_path_factory.mktemp("lasting"), image, {}) as running:
        yield running


@asynccontextmanager
async def serving(folder: Path, image: str, options: dict[str, str]) -> AsyncIterator[ServiceProcess]:
    usual = {"DRIVER": "oci", "SANDBOX_IMAGE": image, "POOL_SIZE": "1", "POOL_MAX": "1", "SANDBOX_MEMORY_MB": "256"}
    usual |= {"SANDBOX_DISK_MB": "200", "SANDBOX_PIDS": "128"}
    after = settings.load(data_dir=folder / "data", sandbox_image=image)
    async with ServiceProcess(folder / "data", **(usual | options)).running(after) as service:
        yield service
