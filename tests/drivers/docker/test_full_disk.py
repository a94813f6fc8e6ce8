"""A disk that takes nothing more: what fills it is stopped all the same."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cubicle import durable
from cubicle.drivers.docker import config
from cubicle.drivers.docker import driver as module
from cubicle.drivers.docker.driver import DockerDriver
from cubicle.drivers.docker.records import DockerRecords
from cubicle.machine.errors import SandboxError
from cubicle.sandbox.driver import SandboxLimits

pytestmark = pytest.mark.anyio

LIMITS = SandboxLimits(disk_bytes=1024**2)


class Engine:
    """Has containers that are all over their limit of disk."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.stuck = ""
        """One that does not end."""
        self.ended = asyncio.Queue[str]()
        self.containers = SimpleNamespace(container=self.container)

    def container(self, name: str) -> Any:
        async def kill(signal: str) -> None:
            if name == self.stuck:
                raise OSError(errno.EIO, "it does not end")
            self.ended.put_nowait(name)

        async def wait(condition: str) -> None:
            pass

        return SimpleNamespace(kill=kill, wait=wait)

    async def list(self, **_options: Any) -> list[dict[str, Any]]:
        size = LIMITS.disk_bytes + 1
        return [{"Id": name, "State": "running", "SizeRw": size, "Labels": {config.NAME: name}} for name in self.names]


@pytest.fixture
def engine() -> Engine:
    return Engine("one", "two")


@pytest.fixture
def driver(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.01)
    made: Any = DockerDriver.__new__(DockerDriver)
    made._client, made._list, made._limits, made._read_only = engine, engine.list, LIMITS, False
    made._records = DockerRecords(tmp_path)
    for name in engine.names:
        made._records.home(name).make(0)
    return made


@pytest.fixture
def full_disk(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "write", write)


@pytest.mark.usefixtures("full_disk")
async def test_a_sandbox_is_stopped_on_a_full_disk(driver: Any, engine: Engine) -> None:
    await driver._stop("one", "one", "")
    assert engine.ended.get_nowait() == "one"


@pytest.mark.usefixtures("full_disk")
async def test_what_is_over_its_disk_limit_is_stopped_when_it_has_filled_the_disk(driver: Any, engine: Engine) -> None:
    assert await _stopped(driver, engine) == {"one", "two"}


async def test_one_that_does_not_end_keeps_no_other_from_being_stopped(driver: Any, engine: Engine) -> None:
    engine.stuck = "one"
    with pytest.raises(SandboxError):
        await driver._stop("one", "one", "")
    assert await _stopped(driver, engine) == {"two"}


async def _stopped(driver: Any, engine: Engine) -> set[str]:
    """What the watchdog stops in its first rounds."""
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        watch = group.create_task(driver._watch_disks())
        found = {await engine.ended.get() for _ in range(4)}
        watch.cancel()
    return found
