"""Shares of the processor: a chat that floods waits, and others do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from cubicle.core.chat import Chat
from cubicle.worker.shares import SLACK, CpuShare, CpuShares, current, task_factory

pytestmark = pytest.mark.anyio


@pytest.fixture
def shares() -> CpuShares:
    return CpuShares()


@pytest.fixture
async def metered() -> Iterator[None]:  # type: ignore[misc]
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(task_factory)
    yield
    loop.set_task_factory(before)


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def work(share: CpuShare, steps: list[int], number: int) -> None:
    current.set(share)

    async def one() -> None:
        while True:
            burn(0.001)
            steps[number] += 1
            await asyncio.sleep(0)

    await asyncio.create_task(one())


async def run(seconds: float, *shares: CpuShare) -> list[int]:
    steps = [0] * len(shares)
    tasks = [asyncio.create_task(work(share, steps, number)) for number, share in enumerate(shares)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return steps


async def test_a_chat_alone_has_all_of_the_time(metered: None, shares: CpuShares) -> None:
    share = shares.of(Chat("1"))
    began, used = time.thread_time(), share.progress
    (steps,) = await run(0.5, share)
    assert steps * 0.001 > 0.8 * (time.thread_time() - began)
    assert share.progress - used > 0


async def test_a_chat_with_many_tasks_has_no_more_than_one_with_one(metered: None, shares: CpuShares) -> None:
    flood, quiet = shares.of(Chat("1")), shares.of(Chat("2"))
    steps = await run(2.0, *[flood] * 50, quiet)
    assert sum(steps[:50]) < 3 * steps[50]


async def test_a_tenant_with_many_chats_has_no_more_than_one_with_one(metered: None, shares: CpuShares) -> None:
    flood = [shares.of(Chat(f"{number}")) for number in range(20)]
    steps = await run(2.0, *flood, shares.of(Chat("1", "other")))
    assert sum(steps[:20]) < 3 * steps[20]


async def test_a_cancelled_task_that_waits_for_its_turn_ends_at_once(metered: None, shares: CpuShares) -> None:
    flood, quiet = shares.of(Chat("1")), shares.of(Chat("2"))
    quiet.charge(SLACK)
    flood.charge(100 * SLACK)
    current.set(flood)
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    task = asyncio.create_task(waits())
    for _ in range(5):
        quiet.charge(SLACK / 100)
        await asyncio.sleep(0)
    assert flood.turns
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    current.set(None)


async def test_results_errors_and_timeouts_are_those_of_the_task_itself(metered: None, shares: CpuShares) -> None:
    current.set(shares.of(Chat("1")))

    async def answer() -> int:
        await asyncio.sleep(0.001)
        return 7

    async def fail() -> None:
        raise ValueError("as told")

    async def wait() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    assert await asyncio.create_task(answer()) == 7
    with pytest.raises(ValueError, match="as told"):
        await asyncio.create_task(fail())
    with pytest.raises(TimeoutError):
        await asyncio.create_task(wait())
    current.set(None)
