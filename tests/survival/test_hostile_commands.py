"""Commands that want to take the sandbox, or the service, down with them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.process import ServiceProcess

pytestmark = pytest.mark.oci
serial = pytest.mark.serial  # what takes the machine, or measures
LONG = bool(os.environ.get("CUBICLE_LONG"))


@pytest.fixture
async def service(lasting: ServiceProcess) -> AsyncIterator[ServiceProcess]:
    """The service that bore the tests before, without the sandbox of theirs."""
    yield lasting
    assert (await lasting.client.delete("/api/sandboxes/hostile")).is_success


async def fine(service: ServiceProcess, chat: str = "hostile") -> None:
    async with asyncio.timeout(60):
        assert await service.bash(chat, "echo fine") == (False, "fine\n")


def memory_of(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no such process")


@serial
async def test_a_fork_bomb_ends_with_its_time_limit(service: ServiceProcess) -> None:
    await fine(service, "neighbour")
    bomb = asyncio.create_task(service.bash("hostile", ":(){ :|:& };:; sleep 100", timeout=3))
    await asyncio.sleep(1)
    await fine(service, "neighbour")
    async with asyncio.timeout(100):
        await bomb
        await fine(service)
        while int((await service.bash("hostile", "ps -e --no-headers | wc -l"))[1]) >= 6:
            await asyncio.sleep(0.1)


@serial
async def test_a_fork_bomb_left_in_the_background_makes_room_for_the_next_command(service: ServiceProcess) -> None:
    await service.bash("hostile", "(:(){ :|:& };:) >/dev/null 2>&1 &")
    await asyncio.sleep(1)
    async with asyncio.timeout(100):
        failed, said = await service.bash("hostile", "echo here")
    assert (failed, said) == (False, "here\n")
    await fine(service)


async def test_a_memory_hog_is_killed_inside_and_the_error_says_so(service: ServiceProcess) -> None:
    hog = "python3 -c 'x = bytearray(10**9); import time; time.sleep(9)'"
    failed, said = await service.bash("hostile", hog)
    assert failed
    assert "out of memory" in said.lower()
    await fine(service)


async def test_a_disk_filler_is_stopped_by_its_limit(service: ServiceProcess) -> None:
    for place in ("~", "/tmp", "/mnt/user-data/outputs"):
        failed, said = await service.bash(
            "hostile", f"head -c 1000000000 /dev/zero > {place}/fill; rc=$?; rm {place}/fill; exit $rc"
        )
        assert failed
        assert "No space left" in said
    await fine(service)


@serial
@pytest.mark.timeout(300 if not LONG else 600)
async def test_endless_output_costs_constant_memory(service: ServiceProcess) -> None:
    """1 GB here; CUBICLE_LONG=1 makes it 10, which is the same loop for longer."""
    size, seconds = (10_000_000_000, 500) if LONG else (1_000_000_000, 280)
    await fine(service)
    before = memory_of(service.pid)
    began = time.monotonic()
    reading = asyncio.create_task(service.bash("hostile", f"head -c {size} /dev/zero | tr '\\0' x", timeout=seconds))
    most = 0.0
    while not reading.done():
        most = max(most, memory_of(service.pid))
        await asyncio.sleep(0.2)
    failed, said = await reading
    assert not failed, said[-300:]
    assert len(said) < 31_000
    assert most - before < 60
    assert time.monotonic() - began < seconds


async def test_output_nobody_can_read_as_text_is_shown_all_the_same(service: ServiceProcess) -> None:
    failed, said = await service.bash("hostile", "head -c 100000 /dev/urandom")
    assert not failed
    assert len(said) < 31_000


async def test_a_command_that_ignores_every_signal_ends_with_its_time_limit(service: ServiceProcess) -> None:
    for limit in (1, 10, 60):  # a busy machine may need more than a second to begin
        failed, said = await service.bash(
            "hostile", "trap '' TERM INT HUP; echo here; while :; do :; done", timeout=limit
        )
        assert failed
        assert f"[timed out after {limit} s]" in said
        if "here" in said:
            break
    assert "here" in said
    await fine(service)


async def test_daemons_of_a_command_end_with_its_time_limit(service: ServiceProcess) -> None:
    daemons = "setsid sleep 1001 & (setsid env -i sleep 1002 &) & nohup sleep 1003 >/dev/null 2>&1 & sleep 1004"
    failed, said = await service.bash("hostile", daemons, timeout=1)
    assert failed
    assert "[timed out after 1 s]" in said
    async with asyncio.timeout(60):
        while await service.bash("hostile", "pgrep -cfx 'sleep 100[1-4]'; true") != (False, "0\n"):
            await asyncio.sleep(0.1)


async def test_a_command_that_closes_its_pipes_and_goes_on_is_waited_for(service: ServiceProcess) -> None:
    failed, said = await service.bash("hostile", "echo here; exec >&- 2>&- <&-; sleep 1; touch ~/went-on")
    assert (failed, said) == (False, "here\n")
    assert await service.bash("hostile", "ls ~/went-on") == (False, "/home/assistant/went-on\n")


async def test_a_command_that_never_reads_its_input_holds_nobody_up(service: ServiceProcess) -> None:
    assert await service.bash("hostile", "yes | sleep 1; cat; echo done") == (False, "done\n")
    await fine(service)


@serial
async def test_many_processes_and_files_left_behind_do_not_slow_the_next_call(service: ServiceProcess) -> None:
    before = await quickest(service)
    await service.bash(
        "hostile",
        "for i in $(seq 60); do sleep 1000 >/dev/null 2>&1 & done; mkdir -p ~/m; cd ~/m; seq 5000 | xargs touch",
    )
    assert await quickest(service) < before + 1


async def quickest(service: ServiceProcess) -> float:
    """The quickest of a few calls: a busy machine may delay one, never all."""
    took = []
    for _ in range(5):
        began = time.monotonic()
        await fine(service)
        took.append(time.monotonic() - began)
    return min(took)
