"""Two thousand chats that are made and removed leave nothing in the service, not even outside the reach of Python."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle import settings
from tests.support.process import ServiceProcess

WARM_UP, CHATS = 500, 1_500
BOUND = 2_000
"""Bytes a chat: one that stays behind takes 28,000. Threads and the allocator take 3 MB in the beginning, once."""
AT_ONCE = 2


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    after = settings.load(data_dir=tmp_path / "data", driver="memory")
    made = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="1")
    made.forked = False  # what a fork has from before is not its own
    async with made.running(after) as running:
        yield running


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


async def made_and_removed(service: ServiceProcess, first: int, count: int) -> None:
    numbers = iter(range(first, first + count))

    async def work() -> None:
        for number in numbers:
            chat = f"passing-{number}"
            assert await service.bash(chat, "echo here") == (False, "here\n")
            assert (await service.client.delete(f"/api/sandboxes/{chat}")).status_code == 204

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(3000)
async def test_chats_that_are_removed_leave_nothing_in_the_service(service: ServiceProcess) -> None:
    await made_and_removed(service, 0, WARM_UP)
    before, open_files = resident_bytes(service.pid), len(os.listdir(f"/proc/{service.pid}/fd"))
    await made_and_removed(service, WARM_UP, CHATS)
    grown = resident_bytes(service.pid) - before
    assert grown < CHATS * BOUND, f"{grown / CHATS:.0f} bytes a chat"
    assert len(os.listdir(f"/proc/{service.pid}/fd")) < open_files + 10
