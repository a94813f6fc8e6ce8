"""An engine that takes a request and never answers it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cubicle.drivers.docker import driver as module
from cubicle.drivers.docker.driver import DockerDriver
from cubicle.machine.errors import SandboxError

pytestmark = pytest.mark.anyio


async def silence(**_options: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("work", ["stop", "delete"])
async def test_an_engine_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    for limit in ("_STOP_SECONDS", "_DELETE_SECONDS"):
        monkeypatch.setattr(module, limit, 0.1)
    container = SimpleNamespace(kill=silence, wait=silence, delete=silence)
    driver: Any = DockerDriver.__new__(DockerDriver)
    driver._client = SimpleNamespace(containers=SimpleNamespace(container=lambda _id: container))
    driver._records = SimpleNamespace(home=lambda _name: SimpleNamespace(ended=lambda _reason: None))
    async with asyncio.timeout(60):
        with pytest.raises(SandboxError):
            await (driver._stop("one", "id", "") if work == "stop" else driver._delete("one", "id"))
