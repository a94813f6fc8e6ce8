"""Guests that are stopped or frozen, and blank sandboxes that die: nobody else notices, and nothing is lost or left.

CUBICLE_LONG=1 stops 20 guests of 200.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from cubicle.drivers.common.instance import instance_of
from cubicle.drivers.oci.driver import RUN_DIR
from tests.support import remains
from tests.support.process import ServiceProcess

pytestmark = pytest.mark.oci

LONG = bool(os.environ.get("CUBICLE_LONG"))
CHATS = [f"chat-{number}" for number in range(200 if LONG else 8)]
HUNG = CHATS[: 20 if LONG else 4]
WELL = CHATS[len(HUNG) :]
SOON = 20.0


def homes(folder: Path) -> dict[str, Path]:
    """Of all chats' sandboxes, by what their sandbox is named."""
    return {home.name: home for home in folder.glob("data/sandboxes/*") if (home / "owner").is_symlink()}


def blank_homes(folder: Path) -> dict[str, int]:
    """The blank sandboxes that are up, and their first processes."""
    found = {}
    for run in folder.glob("data/sandboxes/*/run.json"):
        if not (run.parent / "owner").is_symlink():
            found[run.parent.name] = json.loads(run.read_text())["process"]["pid"]
    return found


async def first_blank(folder: Path, other_than: str = "") -> tuple[str, int]:
    async with asyncio.timeout(120):
        while not (found := {name: pid for name, pid in blank_homes(folder).items() if name != other_than}):
            await asyncio.sleep(0.1)
    return next(iter(found.items()))


async def hang(service: ServiceProcess, chat: str, folder: Path, known: set[str]) -> None:
    """A file and a process in a new chat's sandbox; then its guest is stopped."""
    prepare = f"echo kept-{chat} > ~/kept; sleep 3266 >/dev/null 2>&1 & echo $! > ~/pid"
    assert await service.bash(chat, prepare) == (False, "(no output)")
    [name] = homes(folder).keys() - known
    known.add(name)
    if chat in HUNG:
        run = json.loads((folder / "data/sandboxes" / name / "run.json").read_text())
        os.kill(run["process"]["pid"], signal.SIGSTOP)


@pytest.mark.serial
@pytest.mark.timeout(600)
async def test_a_service_starts_at_once_beside_stopped_guests_and_they_come_back(
    service: ServiceProcess, tmp_path: Path
) -> None:
    plain = await started_again(service)
    known: set[str] = set()
    for chat in CHATS:
        await hang(service, chat, tmp_path, known)
    service.kill()
    took = await service.start()
    assert took < 3 * plain + 5
    look = "cat ~/kept; kill -0 $(cat ~/pid) && echo runs"
    for chat in WELL:
        began = time.monotonic()
        assert await service.bash(chat, look) == (False, f"kept-{chat}\nruns\n")
        assert time.monotonic() - began < SOON
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(*(service.bash(chat, look) for chat in HUNG))
    assert answers == [(False, f"kept-{chat}\nruns\n") for chat in HUNG]


async def started_again(service: ServiceProcess) -> float:
    service.kill()
    return await service.start()


@pytest.mark.serial
async def test_a_call_of_a_frozen_sandbox_goes_on(service: ServiceProcess, tmp_path: Path) -> None:
    assert await service.bash("one", "echo kept > ~/kept") == (False, "(no output)")
    [name] = homes(tmp_path)
    freeze(tmp_path, name)
    async with asyncio.timeout(SOON):
        assert await service.bash("one", "cat ~/kept") == (False, "kept\n")
    freeze(tmp_path, name)
    async with asyncio.timeout(2 * SOON):  # what is frozen can also be removed
        assert (await service.client.delete("/api/sandboxes/one")).status_code == 204


def freeze(folder: Path, name: str) -> None:
    group = f"cubicle/{instance_of(folder / 'data')}/{name}"
    old, new = Path("/sys/fs/cgroup/freezer", group), Path("/sys/fs/cgroup", group)
    if old.is_dir():
        (old / "freezer.state").write_text("FROZEN")
    else:
        (new / "cgroup.freeze").write_text("1")


@pytest.mark.timeout(300)
async def test_a_blank_sandbox_that_dies_takes_everything_with_it(service: ServiceProcess, tmp_path: Path) -> None:
    name, pid = await first_blank(tmp_path)
    os.kill(pid, signal.SIGKILL)
    await first_blank(tmp_path, other_than=name)
    async with asyncio.timeout(60):
        while left := left_of(tmp_path, name):
            await asyncio.sleep(0.1)
    assert left == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [0.0, 0.03, 0.1])
async def test_what_a_killed_service_was_making_is_gone_after_the_next_start(
    service: ServiceProcess, tmp_path: Path, after: float
) -> None:
    """The blank sandbox that it makes at that moment, wherever it is, and the log of the runtime that it called."""
    await first_blank(tmp_path)
    assert await service.bash("one", "true") == (False, "(no output)")  # takes it; the next one is made
    await asyncio.sleep(after)
    service.kill()
    instance = instance_of(tmp_path / "data")
    (RUN_DIR / instance / "logs" / "left-0123abcd").touch()
    before = {home.name for home in tmp_path.glob("data/sandboxes/*")}
    await service.start()
    name, _ = await first_blank(tmp_path)
    async with asyncio.timeout(60):
        while gone := [old for old in before - {name} - homes(tmp_path).keys() if left_of(tmp_path, old)]:
            await asyncio.sleep(0.1)
    assert gone == []
    assert not (RUN_DIR / instance / "logs" / "left-0123abcd").exists()


def left_of(folder: Path, name: str) -> list[str]:
    """Home, mounts, loop device and cgroups of one sandbox."""
    instance = instance_of(folder / "data")
    home, stage = folder / "data/sandboxes" / name, RUN_DIR / instance / name
    found = [str(path) for path in (home, stage) if path.exists()]
    return found + remains.mounts(stage) + remains.loop_devices(home) + remains.cgroups(f"cubicle/{instance}/{name}")
