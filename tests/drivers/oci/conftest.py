"""A driver over a folder of the test's own, and the built image that its sandboxes stand on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.oci.driver import OciDriver
from cubicle.drivers.oci.process import ProcessId
from cubicle.images.store import SUBUID_START, BuiltImage, ImageStore
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import SandboxLimits, SandboxSeen
from cubicle.sandbox.warm_pool import connect
from cubicle.settings import load
from tests.conftest import absent
from tests.drivers.makers import some_base
from tests.support import remains
from tests.support.emptying import leave

SMALL = SandboxLimits(memory_bytes=256 * 1024**2, cpus=1.0, pids=64, disk_bytes=64 * 1024**2)


@pytest.fixture(scope="session")
def store() -> ImageStore:
    return ImageStore(load().image_dir)


@pytest.fixture(scope="session")
def base(store: ImageStore) -> BuiltImage:
    return some_base(store)


@pytest.fixture(scope="session")
def standard(store: ImageStore) -> BuiltImage:
    """The newest image with a browser and Node."""
    for base in store.built():
        if base.manifest.variant == "standard":
            return base
    absent("needs the standard image: make image")
    raise AssertionError


Make = Callable[..., AbstractAsyncContextManager[OciDriver]]


@pytest.fixture
def make_driver(tmp_path: Path, store: ImageStore, base: BuiltImage) -> Make:
    """Opens drivers over one folder; all sandboxes are gone when the block ends."""

    @asynccontextmanager
    async def make(keep: bool = False, **options: Any) -> AsyncIterator[OciDriver]:
        options.setdefault("limits", SMALL)
        driver = OciDriver(tmp_path / "data", store, base.digest, SUBUID_START, **options)
        await driver.open()
        try:
            yield driver
        finally:
            await (driver.close() if keep else leave(driver))

    return make


@pytest.fixture
async def driver(make_driver: Make) -> AsyncIterator[OciDriver]:
    async with make_driver() as opened:
        yield opened


@asynccontextmanager
async def machine_of(driver: OciDriver, name: str) -> AsyncIterator[Machine]:
    machine = await connect(driver, name)
    try:
        yield machine
    finally:
        machine.close()


async def said(driver: OciDriver, name: str, command: str, **options: Any) -> str:
    """What a command prints in a sandbox."""
    async with machine_of(driver, name) as machine:
        _, output = await machine.output(command, **options)
        return output.decode(errors="replace").strip()


async def first_process(driver: OciDriver, name: str) -> ProcessId:
    run = await asyncio.to_thread(driver._records.home(name).run)
    assert run is not None
    return run.process


def mounted(driver: OciDriver) -> list[str]:
    return remains.mounts(driver._place.stage)


def cgroups(driver: OciDriver) -> list[str]:
    """Those of its sandboxes, in every tree."""
    parent = driver._place.cgroup
    return [path for path in remains.cgroups(parent) if not path.endswith(parent)]


def processes(driver: OciDriver) -> list[str]:
    """What there is of its sandboxes and its runtimes; the dead, too, until the host's first process fetches them."""
    place = driver._place
    return remains.processes(f"{place.cgroup}/", str(place.stage), str(driver._records.root))


def open_files() -> int:
    """Of this process. They may become fewer by themselves: what a test before left is closed when it is collected."""
    return len(os.listdir("/proc/self/fd"))


async def eventually(question: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for the kernel to finish tearing namespaces down; what is still there when the time is over."""
    deadline = time.monotonic() + seconds
    while (answer := question()) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return answer


async def state_of(driver: OciDriver, name: str) -> SandboxSeen:
    (seen,) = [s for s in await driver.list() if s.name == name]
    return seen
