"""The service is killed without a word; its sandboxes and their files are not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from tests.survival.process import ServiceProcess

pytestmark = [pytest.mark.oci, pytest.mark.serial]

CHATS = [f"chat-{i}" for i in range(20)]


async def test_twenty_sandboxes_outlive_a_killed_service(service: ServiceProcess, tmp_path: Path) -> None:
    """All are adopted with what ran in them, no file is lost, and nothing is left over."""
    prepare = "echo kept-$0 > ~/kept; setsid sh -c 'while :; do date +%s%N > ~/beat; sleep 0.1; done' >/dev/null 2>&1 &"
    for chat in CHATS:
        assert await service.bash(chat, prepare) == (False, "(no output)")
    running = [asyncio.create_task(service.bash(chat, "sleep 77; echo slept", timeout=80)) for chat in CHATS]
    await asyncio.sleep(0.7)
    mounts_before = mounts(tmp_path)
    service.kill()
    for result in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(result, httpx.TransportError)
    assert mounts(tmp_path) == mounts_before
    await service.start()
    for chat in CHATS:
        failed, said = await service.bash(
            chat,
            "cat ~/kept; rm ~/beat; for i in $(seq 100); do test -s ~/beat && echo beats && break; sleep 0.1; done",
        )
        assert (failed, said.split()) == (False, ["kept-/bin/bash", "beats"])
        assert await service.bash(chat, "pgrep -cfx 'sleep 77'") == (False, "1\n")  # its caller was lost, not it
    sandboxes = list((tmp_path / "data" / "sandboxes").iterdir())
    assert len(sandboxes) == len(CHATS) + 1  # and one blank


async def test_a_killed_sandbox_is_started_anew_with_its_files(service: ServiceProcess) -> None:
    assert await service.bash("one", "echo kept > ~/kept") == (False, "(no output)")
    failed, said = await service.bash("one", "readlink /proc/self/ns/pid")
    guests = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if namespace_of(pid) == said.strip()]
    waiting = asyncio.create_task(service.bash("one", "sleep 60"))
    await asyncio.sleep(0.3)
    os.kill(min(map(int, guests)), 9)
    async with asyncio.timeout(10):
        failed, said = await waiting
    assert failed
    assert "sandbox" in said
    async with asyncio.timeout(10):
        assert await service.bash("one", "cat ~/kept") == (False, "kept\n")


def namespace_of(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def mounts(folder: Path) -> list[str]:
    return sorted(line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line)
