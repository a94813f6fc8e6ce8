"""Idle sandboxes are frozen, and every use finds them running. On runc: the freezer is the kernel's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.oci.freezer import _SWITCHES
from cubicle.machine.errors import SandboxError
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import Driver, State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.idle_ladder import FROZEN_TIMES
from tests.drivers.makers import Maker, oci
from tests.support.emptying import empty

pytestmark = [pytest.mark.oci, pytest.mark.timeout(300)]

A = Chat("a")
NEVER = 86400.0
"""The task of the ladder does nothing by itself: a test calls its sweeps."""
MakeFleet = Callable[..., Fleet]


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return oci("runc")(tmp_path)


@pytest.fixture
async def make(maker: Maker, tmp_path: Path) -> AsyncIterator[MakeFleet]:
    def make(freeze_after: float = NEVER) -> Fleet:
        return Fleet(maker(), ChatIndex(tmp_path / "chats"), pool_size=0, freeze_after=freeze_after)

    yield make
    await empty(maker())


@pytest.fixture
async def fleet(make: MakeFleet) -> AsyncIterator[Fleet]:
    async with make() as fleet:
        yield fleet


def driver_of(fleet: Fleet) -> Driver:
    return fleet._driver


def halted(fleet: Fleet, chat: Chat = A) -> bool:
    """As the kernel sees it."""
    seen = fleet.state(chat)
    assert seen is not None
    found = [
        switch.sign in (folder / switch.seen_in).read_text().splitlines()
        for switch in _SWITCHES
        for folder in switch.tree.glob(f"cubicle/*/{seen.name}")
        if (folder / switch.seen_in).exists()
    ]
    assert found
    return any(found)


async def idle_for(fleet: Fleet, seconds: float) -> None:
    """As if nobody had used anything for so long, and the ladder looked."""
    for slot in fleet._slots.values():
        slot.rest.since = time.monotonic() - seconds
    await fleet.ladder.sweep()


async def say(fleet: Fleet, command: str, chat: Chat = A) -> str:
    async with fleet.lease(chat) as machine:
        return (await machine.output(command, timeout=60))[1].decode()


async def test_an_idle_sandbox_is_frozen_and_the_next_call_finds_it_as_it_was(fleet: Fleet) -> None:
    await say(fleet, "echo kept > /dev/shm/kept")
    await idle_for(fleet, NEVER - 60)
    assert not halted(fleet)
    await idle_for(fleet, NEVER)
    assert halted(fleet)
    assert fleet.ladder.frozen == 1
    assert await say(fleet, "cat /dev/shm/kept") == "kept\n"
    assert not halted(fleet)
    assert fleet.ladder.frozen == 0


async def test_it_is_frozen_by_itself_after_the_set_time(make: MakeFleet) -> None:
    async with make(0.4) as fleet:
        await say(fleet, "true")
        async with asyncio.timeout(60):
            while not fleet.ladder.frozen:
                await asyncio.sleep(0.05)
        assert await say(fleet, "echo here") == "here\n"


async def test_nothing_is_frozen_when_it_is_off(make: MakeFleet) -> None:
    async with make(0) as fleet:
        await say(fleet, "true")
        async with asyncio.timeout(10):
            await fleet.ladder.run()
        assert not halted(fleet)


@pytest.mark.parametrize(
    "program",
    [
        "sleep 300",
        "python3 -m http.server 8000",
        "sh -c 'while :; do date +%N > ~/beat; sleep 0.2; done'",
        "tail -f /dev/null",
    ],
)
async def test_what_was_left_running_in_the_background_goes_on(fleet: Fleet, program: str) -> None:
    await say(fleet, f"setsid {program} >/dev/null 2>&1 &")
    await idle_for(fleet, NEVER)
    assert not halted(fleet)
    programs = "-u assistant -x 'setsid|sh|sleep|python3|tail'"
    # What was started just now may be no program of its own yet.
    await say(
        fleet,
        f"for n in 1 2 3; do pkill -KILL {programs}; sleep 0.1; done; while pkill -KILL {programs}; do sleep 0.05; done",
    )
    async with asyncio.timeout(60):  # on a busy machine they take their time to be gone
        while not halted(fleet):
            await idle_for(fleet, NEVER)


async def test_whoever_holds_a_lease_or_looks_keeps_it_running(fleet: Fleet) -> None:
    await say(fleet, "true")
    async with fleet.lease(A):
        await idle_for(fleet, NEVER)
        assert not halted(fleet)
    async with fleet.look(A):
        await idle_for(fleet, NEVER)
        assert not halted(fleet)
    await idle_for(fleet, NEVER)
    assert halted(fleet)


async def test_a_look_at_files_lets_it_run_on(fleet: Fleet) -> None:
    await say(fleet, "echo seen > ~/seen")
    await idle_for(fleet, NEVER)
    async with fleet.look(A) as machine:
        assert await machine.read_bytes("/home/assistant/seen", limit=100) == b"seen\n"
    assert not halted(fleet)


async def test_what_it_uses_is_told_without_waking_it(fleet: Fleet) -> None:
    await say(fleet, "head -c 4000000 /dev/urandom > ~/file; sync")
    running = await fleet.usage(A)
    await idle_for(fleet, NEVER)
    frozen = await fleet.usage(A)
    await asyncio.sleep(0.3)
    later = await fleet.usage(A)
    assert halted(fleet)
    assert running is not None
    assert frozen is not None
    assert later is not None
    assert frozen.disk_used == running.disk_used
    assert (frozen.cpu_seconds or 0) >= (running.cpu_seconds or 0) > 0
    assert later.uptime >= frozen.uptime + 0.3  # or it would count as started anew, and its time twice
    assert [seen.state for seen in fleet.overview()] == [State.RUNNING]


async def test_a_call_that_races_with_the_freezer_is_answered(fleet: Fleet) -> None:
    """Each call comes at another moment of the freezing, and none waits until its guest is found silent."""
    await say(fleet, "true")
    slowest = 0.0
    for turn in range(60):
        for slot in fleet._slots.values():
            slot.rest.since = time.monotonic() - NEVER
        sweeping = asyncio.create_task(fleet.ladder.sweep())
        for _ in range(turn % 20):
            await asyncio.sleep(0.0001)
        began = time.monotonic()
        assert await say(fleet, f"echo {turn}") == f"{turn}\n"
        slowest = max(slowest, time.monotonic() - began)
        await sweeping
    assert slowest < 1.0  # liveness.py asks a silent guest after a second


async def test_many_calls_at_once_on_a_frozen_one_are_all_answered(fleet: Fleet) -> None:
    await say(fleet, "true")
    await idle_for(fleet, NEVER)
    assert halted(fleet)
    assert await asyncio.gather(*(say(fleet, f"echo {n}") for n in range(16))) == [f"{n}\n" for n in range(16)]


@pytest.mark.parametrize("trouble", [SandboxError("no"), OSError(5, "no"), None])
async def test_a_freeze_that_fails_keeps_nobody_from_using_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, trouble: Exception | None
) -> None:
    await say(fleet, "echo kept > ~/kept")

    async def freeze(name: str) -> bool:
        if trouble is not None:
            raise trouble
        return False

    monkeypatch.setattr(driver_of(fleet), "freeze", freeze)
    await idle_for(fleet, NEVER)
    assert not halted(fleet)
    assert await say(fleet, "cat ~/kept") == "kept\n"


async def test_one_that_cannot_be_thawed_at_first_is_found_by_its_silence(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(fleet, "echo kept > /dev/shm/kept")
    await idle_for(fleet, NEVER)
    resume, failures = driver_of(fleet).resume, [SandboxError("not now")]

    async def hesitant(name: str) -> bool:
        if failures:
            raise failures.pop()
        return await resume(name)

    monkeypatch.setattr(driver_of(fleet), "resume", hesitant)
    assert await say(fleet, "cat /dev/shm/kept") == "kept\n"


async def test_a_frozen_one_is_stopped_and_woken_with_its_files(fleet: Fleet) -> None:
    await say(fleet, "echo kept > ~/kept")
    await idle_for(fleet, NEVER)
    assert halted(fleet)
    async with asyncio.timeout(20):
        await fleet.stop(A)
    assert fleet.condition(A) == "stopped"
    assert await say(fleet, "cat ~/kept") == "kept\n"


async def test_a_frozen_one_is_removed(fleet: Fleet) -> None:
    await say(fleet, "true")
    await idle_for(fleet, NEVER)
    async with asyncio.timeout(20):
        assert await fleet.remove(A)
    assert [found.owner for found in await fleet.trash()] == [A.digest]


async def test_the_next_service_finds_a_frozen_one_with_what_it_had(make: MakeFleet) -> None:
    async with make() as fleet:
        await say(fleet, "echo kept > /dev/shm/kept")
        await idle_for(fleet, NEVER)
        assert halted(fleet)
    async with make() as fleet:
        began = time.monotonic()
        assert await say(fleet, "cat /dev/shm/kept") == "kept\n"
        assert time.monotonic() - began < 20


async def test_memory_of_what_is_frozen_for_long_is_given_back_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(fleet, "head -c 20000000 /dev/urandom > ~/file; sync; cat ~/file > /dev/null; echo kept > /dev/shm/kept")
    calls: list[str] = []
    give = driver_of(fleet).give_memory_back

    async def counted(name: str) -> None:
        calls.append(name)
        await give(name)

    monkeypatch.setattr(driver_of(fleet), "give_memory_back", counted)
    await idle_for(fleet, NEVER)
    await idle_for(fleet, NEVER * FROZEN_TIMES)
    assert not calls
    before = cached(fleet)
    for _ in range(3):
        await idle_for(fleet, NEVER * (FROZEN_TIMES + 1))
    assert len(calls) == 1
    assert halted(fleet)
    assert cached(fleet) < before / 2
    assert await say(fleet, "cat /dev/shm/kept; wc -c < ~/file") == "kept\n20000000\n"


def cached(fleet: Fleet) -> int:
    """Bytes of its memory, its caches included."""
    seen = fleet.state(A)
    assert seen is not None
    root = Path("/sys/fs/cgroup")
    for folder in (*root.glob(f"cubicle/*/{seen.name}"), *root.glob(f"memory/cubicle/*/{seen.name}")):
        for name in ("memory.current", "memory.usage_in_bytes"):
            if (folder / name).exists():
                return int((folder / name).read_text())
    raise AssertionError("no cgroup of its memory")
