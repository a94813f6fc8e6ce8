"""The pool of blank sandboxes: it grows with the new chats, shrinks without them, and stays within its bounds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.errors import SandboxError, StartFailed
from cubicle.sandbox import pool_demand, warm_pool
from cubicle.sandbox.free_memory import FreeMemory
from cubicle.sandbox.pool_demand import PoolDemand
from cubicle.sandbox.warm_pool import Part, WarmPool
from cubicle.tasks import start_task
from tests.support.emptying import empty

PLENTY = FreeMemory(100, 90)
numbers = itertools.count()


class Counting(MemoryDriver):
    """The memory driver; it notes how many starts went on at once, and fails where a test wants it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.at_once = self.most_at_once = 0
        self.broken = False
        self.stuck: Exception | None = None
        self.late_failures = 0

    async def start(self, name: str, owner: str | None) -> None:
        if owner is not None:
            await super().start(name, owner)
            if self.late_failures:
                self.late_failures -= 1
                raise StartFailed("What made it the owner's could not be synced.")
            return
        self.made.append(name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.broken:
                raise StartFailed("It is broken.")
            await super().start(name, owner)
        finally:
            self.at_once -= 1

    async def delete(self, name: str) -> None:
        if self.stuck is not None:
            raise self.stuck
        self.deleted.append(name)
        await super().delete(name)


@dataclass
class Ground:
    folder: Path
    driver: Counting
    memory: FreeMemory = PLENTY
    now: float = 1000.0

    @asynccontextmanager
    async def pool(self, least: int, most: int, part: Part | None = None) -> AsyncIterator[WarmPool]:
        demand = PoolDemand(least, most, lambda: self.now)
        pool = WarmPool(self.driver, demand, None, part, memory=lambda: self.memory)
        running = start_task(pool.run(await self.driver.list()), name="pool")
        try:
            yield pool
        finally:
            running.cancel()
            await asyncio.wait([running])
            pool.close()


@pytest.fixture
async def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    monkeypatch.setattr(warm_pool, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(warm_pool, "_REST_AFTER_FAILURE", 0.1)
    driver = Counting(tmp_path)
    await driver.open()
    yield Ground(tmp_path, driver)
    await driver.close()
    await empty(MemoryDriver(tmp_path))


async def come(pool: WarmPool, tenant: str, count: int) -> list[str]:
    """The names of the blank ones that new chats got."""
    chats = [Chat(f"chat-{next(numbers)}", tenant) for _ in range(count)]
    machines = [machine for machine in await asyncio.gather(*map(pool.claim, chats)) if machine is not None]
    for machine in machines:
        machine.close()
    return [machine.name for machine in machines]


async def until(pool: WarmPool, ready: int) -> None:
    async with asyncio.timeout(60):
        while pool.ready != ready:
            await asyncio.sleep(0.02)


async def blank(driver: Counting) -> int:
    return sum(seen.owner is None for seen in await driver.list())


async def test_it_grows_with_a_burst_one_at_a_time_and_shrinks_without(ground: Ground) -> None:
    async with ground.pool(1, 6) as pool:
        await pool.filled()
        assert len(await come(pool, "a", 5)) == 1, "the others start for themselves"
        await until(pool, 5)
        assert ground.driver.most_at_once == 1
        ground.now += pool_demand.WINDOW + 1
        assert len(await come(pool, "a", 5)) == 5
        await until(pool, 5)
        ground.now += 20 * pool_demand.HALF_LIFE
        await until(pool, 1)
        async with asyncio.timeout(60):
            while await blank(ground.driver) != 1:
                await asyncio.sleep(0.02)


async def test_a_flood_makes_no_more_than_the_most(ground: Ground) -> None:
    async with ground.pool(1, 3) as pool:
        await pool.filled()
        await come(pool, "a", 50)
        await until(pool, 3)
        await asyncio.sleep(0.3)
        assert pool.ready == await blank(ground.driver) == 3


async def test_memory_bounds_it(ground: Ground) -> None:
    async with ground.pool(1, 6) as pool:
        await pool.filled()
        ground.memory = FreeMemory(100, 15)
        await come(pool, "a", 4)
        await until(pool, 1)
        await asyncio.sleep(0.3)
        assert pool.ready == pool.size == 1, "too little to grow"
        ground.memory = PLENTY
        await until(pool, 4)
        ground.memory = FreeMemory(100, 15)
        await asyncio.sleep(0.3)
        assert pool.ready == 4, "enough for what is there"
        ground.memory = FreeMemory(100, 5)
        await until(pool, 1)


async def test_it_gives_way_to_starts_that_somebody_waits_for(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_pool, "_GIVE_WAY_SECONDS", 60.0)
    async with ground.pool(1, 6) as pool:
        await pool.filled()
        async with pool.start_elsewhere():
            await come(pool, "a", 3)
            await asyncio.sleep(0.3)
            assert len(ground.driver.made) == 1
        await until(pool, 3)


async def test_starts_that_never_end_do_not_keep_it_empty(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_pool, "_GIVE_WAY_SECONDS", 0.1)
    async with ground.pool(1, 6) as pool, pool.start_elsewhere():
        await come(pool, "a", 3)
        await until(pool, 3)


async def test_a_pool_that_is_half_full_is_filled_up_when_nobody_takes_one(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "_GIVE_WAY_SECONDS", 60.0)
    monkeypatch.setattr(warm_pool, "_QUIET_SECONDS", 6.0)
    async with ground.pool(6, 6) as pool:
        await pool.filled()
        assert len(await come(pool, "a", 2)) == 2
        await asyncio.sleep(0.3)
        assert pool.ready == 4
        assert len(ground.driver.made) == 6
        assert len(await come(pool, "a", 2)) == 2, "less than half: it is filled now"
        await until(pool, 4)
        await asyncio.sleep(0.3)
        assert pool.ready == 4
        monkeypatch.setattr(pool, "_quiet_at", 0.0)
        await until(pool, 6)


async def test_one_tenant_does_not_take_what_another_may_want(ground: Ground) -> None:
    async with ground.pool(1, 10) as pool:
        await pool.filled()
        await come(pool, "quiet", 2)
        await come(pool, "flood", 4)
        await until(pool, 6)
        ground.now += pool_demand.WINDOW + 1
        flood, quiet = await asyncio.gather(come(pool, "flood", 40), come(pool, "quiet", 2))
        assert len(quiet) == 2
        assert len(flood) == 3, "and one is for a tenant that was not here lately"


async def test_blank_ones_that_cannot_be_made_are_not_tried_without_pause(ground: Ground) -> None:
    ground.driver.broken = True
    async with ground.pool(2, 6) as pool:
        await come(pool, "a", 6)
        await asyncio.sleep(0.5)
        assert 2 <= len(ground.driver.made) <= 7
        assert pool.ready == 0
        ground.driver.broken = False
        await until(pool, 6)
    assert await blank(ground.driver) == 6


@pytest.mark.parametrize("why", [SandboxError("It cannot be deleted."), ArithmeticError("nobody foresaw this")])
async def test_what_cannot_be_deleted_is_tried_again_and_stops_nothing(ground: Ground, why: Exception) -> None:
    async with ground.pool(1, 4) as pool:
        await come(pool, "a", 4)
        await until(pool, 4)
        ground.driver.stuck = why
        ground.now += 20 * pool_demand.HALF_LIFE
        await until(pool, 1)
        assert len(await come(pool, "b", 1)) == 1
        await until(pool, 1)
        ground.driver.stuck = None
        async with asyncio.timeout(60):
            while await blank(ground.driver) != 1:
                await asyncio.sleep(0.02)


async def test_one_that_a_failed_start_gave_to_a_chat_is_not_deleted(ground: Ground) -> None:
    """The chat's next call finds it, and may have used it by the time that the pool deletes what could not be used."""
    async with ground.pool(1, 1) as pool:
        await until(pool, 1)
        ground.driver.late_failures = 1
        chat = Chat("chat")
        assert await pool.claim(chat) is None
        name = await ground.driver.find(chat.digest)
        assert name is not None
        async with asyncio.timeout(60):
            while pool._unwanted:
                await asyncio.sleep(0.02)
        assert ground.driver.deleted == []
        assert await ground.driver.find(chat.digest) == name


async def test_after_a_kill_it_keeps_what_is_wanted_and_deletes_the_rest_after_the_starts(ground: Ground) -> None:
    async with ground.pool(1, 6) as pool:
        await come(pool, "a", 6)
        await until(pool, 6)
    before = set(ground.driver.made)
    async with ground.pool(2, 6) as pool:
        async with pool.start_elsewhere():
            await until(pool, 2)
            assert not ground.driver.deleted
            got = await come(pool, "b", 2)
            assert set(got) <= before
        async with asyncio.timeout(60):
            while await blank(ground.driver) != 2:
                await asyncio.sleep(0.02)
        assert set(ground.driver.deleted) <= before - set(got)


async def test_shrinking_never_takes_one_that_somebody_got(ground: Ground) -> None:
    async with ground.pool(1, 8) as pool:
        await come(pool, "a", 8)
        await until(pool, 8)
        ground.now += 20 * pool_demand.HALF_LIFE
        got: list[str] = []
        while pool.ready > 1:
            got += await come(pool, f"t{len(got)}", 1)
            await asyncio.sleep(0)
        seen = {seen.name: seen.owner for seen in await ground.driver.list()}
        assert got
        assert all(seen[name] is not None for name in got)
        assert not set(got) & set(ground.driver.deleted)


async def test_parts_leave_each_other_theirs(ground: Ground) -> None:
    async with ground.pool(1, 2, Part(1, 2)) as one, ground.pool(1, 2, Part(2, 2)) as two:
        await asyncio.gather(one.filled(), two.filled())
        await come(one, "a", 9)
        await until(one, 2)
        assert two.ready == 1
        assert await blank(ground.driver) == 3
