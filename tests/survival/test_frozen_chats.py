"""A service whose idle chats are frozen: who looks does not wake them, who uses them finds them as they were."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cubicle.settings import Settings
from tests.support.process import ServiceProcess, command

pytestmark = [pytest.mark.oci, pytest.mark.timeout(600)]

CHATS = [f"chat-{number}" for number in range(4)]


@pytest.fixture
def options() -> dict[str, str]:
    return {"FREEZE_SECONDS": "1", "POOL_SIZE": "0", "TENANT_CPU_SECONDS_PER_DAY": "100000"}


def cubicle(after: Settings, *words: str) -> str:
    told = {"DATA_DIR": str(after.data_dir), "SANDBOX_IMAGE": after.sandbox_image, "COLUMNS": "200"}
    said = command(words, os.environ | told, after.data_dir.parent)
    assert said.code == 0, said.errors
    return said.output


async def frozen(service: ServiceProcess) -> int:
    page = (await service.client.get("/metrics")).text
    line = next(line for line in page.splitlines() if line.startswith("cubicle_sandboxes_frozen"))
    return round(float(line.split()[1]))


async def all_frozen(service: ServiceProcess, count: int) -> None:
    async with asyncio.timeout(120):
        while await frozen(service) != count:
            await asyncio.sleep(0.2)


async def test_who_looks_does_not_wake_and_a_killed_service_loses_nothing(
    service: ServiceProcess, after: Settings, tmp_path: Path
) -> None:
    for chat in CHATS:
        assert await service.bash(chat, f"echo {chat} > /dev/shm/kept") == (False, "(no output)")
    assert await service.bash("busy", "setsid sleep 3000 >/dev/null 2>&1 &") == (False, "(no output)")
    await all_frozen(service, len(CHATS))
    shown = (await service.client.get("/api/sandboxes")).json()["sandboxes"]
    assert sorted(row["chat"] for row in shown) == sorted([*CHATS, "busy"])
    assert all(row["state"] == "running" and row["memory_bytes"] > 0 for row in shown)
    listed = await asyncio.to_thread(cubicle, after, "ps")
    assert listed.count("frozen") == len(CHATS)
    assert await frozen(service) == len(CHATS)
    service.kill()
    assert (await asyncio.to_thread(cubicle, after, "ps")).count("frozen") == len(CHATS)
    await service.start()
    for chat in CHATS:
        assert await service.bash(chat, "cat /dev/shm/kept") == (False, f"{chat}\n")
    assert await service.bash("busy", "pgrep -xc sleep") == (False, "1\n")
    await all_frozen(service, len(CHATS))
    await asyncio.to_thread(cubicle, after, "export", CHATS[0], str(tmp_path / "chat.cubicle"))
    assert (tmp_path / "chat.cubicle").stat().st_size > 0
    await asyncio.to_thread(cubicle, after, "stop", CHATS[1])
    assert await service.bash(CHATS[1], "echo again") == (False, "again\n")
    await asyncio.to_thread(cubicle, after, "rm", CHATS[2])
    assert "1 removed sandbox" in await asyncio.to_thread(cubicle, after, "ps")
