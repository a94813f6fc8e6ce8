"""The pool over real sandboxes: it grows, gives what runs, costs no processor time, and outlives its service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.oci.driver import OciDriver
from cubicle.sandbox.pool_demand import PoolDemand
from cubicle.sandbox.warm_pool import WarmPool
from cubicle.tasks import start_task
from tests.drivers.oci.conftest import Make

pytestmark = pytest.mark.oci


@asynccontextmanager
async def pool_of(driver: OciDriver, least: int, most: int) -> AsyncIterator[WarmPool]:
    pool = WarmPool(driver, PoolDemand(least, most))
    running = start_task(pool.run(await driver.list()), name="pool")
    try:
        await pool.filled()
        yield pool
    finally:
        running.cancel()
        await asyncio.wait([running])
        pool.close()


async def claimed(pool: WarmPool, chat: Chat) -> str:
    """What a new chat's first command says in the blank one that it got."""
    machine = await pool.claim(chat)
    if machine is None:
        return ""
    try:
        _, said = await machine.output("echo here", timeout=60)
    finally:
        machine.close()
    return said.decode().strip()


def cpu_of(driver: OciDriver, pool: WarmPool) -> list[int]:
    """Nanoseconds that the guests of the blank ones have run."""
    runs = [driver._records.home(machine.name).run() for machine in pool._blank]
    return [int(Path(f"/proc/{run.process.pid}/schedstat").read_text().split()[0]) for run in runs if run is not None]


async def test_it_grows_and_gives_what_runs(make_driver: Make) -> None:
    async with make_driver(runtime="runc") as driver:
        async with pool_of(driver, 1, 4) as pool:
            first = await asyncio.gather(*(claimed(pool, Chat(f"first-{number}")) for number in range(4)))
            assert sorted(first) == ["", "", "", "here"]
            await pool.filled()
            assert pool.ready == pool.size == 4
            second = await asyncio.gather(*(claimed(pool, Chat(f"second-{number}")) for number in range(4)))
            assert second == ["here"] * 4
            await pool.filled()
            assert pool.ready == 4
            before = await asyncio.to_thread(cpu_of, driver, pool)
            await asyncio.sleep(3)
            spent = [
                now - then for now, then in zip(await asyncio.to_thread(cpu_of, driver, pool), before, strict=True)
            ]
            assert max(spent) < 3_000_000, "a thousandth of a processor"
        async with pool_of(driver, 2, 4) as pool:
            async with asyncio.timeout(60):
                while sum(seen.owner is None for seen in await driver.list()) > 2:
                    await asyncio.sleep(0.05)
            assert pool.ready == 2
            owned = [seen for seen in await driver.list() if seen.owner is not None]
            assert len(owned) == 5, "of what somebody got nothing is deleted"
