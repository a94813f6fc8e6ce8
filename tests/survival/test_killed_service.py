"""The service is killed without a word; its sandboxes and their files are not."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest

from cubicle.drivers.common.instance import instance_of
from cubicle.drivers.factory import make_driver
from cubicle.drivers.oci.driver import RUN_DIR
from cubicle.settings import Settings
from tests.drivers.sight import seen_on_host, within
from tests.support import remains
from tests.support.emptying import empty
from tests.support.process import ServiceProcess

pytestmark = pytest.mark.oci

CHATS = [f"chat-{i}" for i in range(20)]


@pytest.fixture
def options() -> dict[str, str]:
    """Commands whose callers were lost are not ended while the test looks at them."""
    return {"RESUME_SECONDS": "3600"}


@pytest.mark.timeout(600)
async def test_twenty_sandboxes_outlive_a_killed_service(
    service: ServiceProcess, tmp_path: Path, after: Settings
) -> None:
    """All are adopted with what ran in them, no file is lost, and nothing is orphaned."""
    prepare = "echo kept-$0 > ~/kept; setsid sh -c 'while :; do date +%s%N > ~/beat; sleep 0.1; done' >/dev/null 2>&1 &"
    for chat in CHATS:
        assert await service.bash(chat, prepare) == (False, "(no output)")
    running = [asyncio.create_task(service.bash(chat, "sleep 3277; echo slept", timeout=3280)) for chat in CHATS]
    instance = instance_of(tmp_path / "data")
    async with asyncio.timeout(120):
        while sum(line.endswith(": sleep 3277") for line in remains.processes(f"/cubicle/{instance}/")) < len(CHATS):
            await asyncio.sleep(0.2)
    stage = RUN_DIR / instance
    async with asyncio.timeout(120):  # the blank one that is made beside them
        while len(first_processes(tmp_path)) <= len(CHATS):
            await asyncio.sleep(0.2)
    mounts, first = remains.mounts(stage), first_processes(tmp_path)
    assert len(first) == len(CHATS) + 1
    assert len(mounts) == 2 * len(first)
    service.kill()
    for result in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(result, httpx.TransportError)
    await service.start()
    for chat in CHATS:
        failed, said = await service.bash(
            chat,
            "cat ~/kept; rm ~/beat; for i in $(seq 600); do test -s ~/beat && echo beats && break; sleep 0.1; done",
        )
        assert (failed, said.split()) == (False, ["kept-/bin/bash", "beats"])
        assert await service.bash(chat, "pgrep -cfx 'sleep 3277'") == (False, "1\n")  # its caller was lost, not it
    assert len(first_processes(tmp_path)) == len(CHATS) + 1  # and one blank
    assert first <= first_processes(tmp_path)  # adopted, not started anew
    assert remains.mounts(stage) == mounts
    async with asyncio.timeout(60):  # the service, what it has started, and nothing of the one before it
        while {int(line.partition(":")[0]) for line in remains.processes(str(tmp_path))} - family(service.pid):
            await asyncio.sleep(0.2)
    service.stop()
    await empty(make_driver(after))
    assert await gone(tmp_path) == []


async def gone(folder: Path) -> list[str]:
    """What is left of it on the host after a while."""
    for _ in range(150):
        if not (left := remains.of_run(folder)):
            break
        await asyncio.sleep(0.2)
    return left


def family(pid: int) -> set[int]:
    """A process and all that it started."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:  # it is gone
        return {pid}
    return {pid}.union(*(family(child) for child in children))


def first_processes(folder: Path) -> set[int]:
    """Of all sandboxes that are up."""
    return {json.loads(run.read_text())["process"]["pid"] for run in folder.glob("data/sandboxes/*/run.json")}


async def test_a_killed_sandbox_is_started_anew_with_its_files(service: ServiceProcess) -> None:
    assert await service.bash("one", "echo kept > ~/kept") == (False, "(no output)")
    failed, said = await service.bash("one", "readlink /proc/self/ns/pid")
    guest = within(said.strip())[0]
    waiting = asyncio.create_task(service.bash("one", "sleep 3276"))
    assert await seen_on_host("3276")
    os.kill(guest, 9)
    async with asyncio.timeout(60):
        failed, said = await waiting
    assert failed
    assert "sandbox" in said
    async with asyncio.timeout(60):
        assert await service.bash("one", "cat ~/kept") == (False, "kept\n")
