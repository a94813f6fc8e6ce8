"""A service is killed after each of its writes, whatever it was doing: the next one goes on, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.kubernetes.crashing_service import NOTE
from tests.drivers.kubernetes.test_claims import SELDOM, blank, end_pool, owners_of_pods
from tests.support.emptying import leave
from tests.support.fork_server import the_server

Make = Callable[[], KubernetesDriver]
CRASHING = "tests.drivers.kubernetes.crashing_service"
EVERYTHING = -1e9
WRITES = {
    "claim": 3, "start": 2, "start in vain": 6, "wake": 2, "stop": 1, "delete": 4, "remove files": 3, "discard": 3,
    "restore": 2, "sweep": 8,
}  # fmt: skip
"""That each has at the least: after each of them, the service is killed."""


@pytest.fixture(params=SELDOM)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    found: Make = request.param(tmp_path, pool_size=1)
    return found


@pytest.fixture
async def driver(make: Make) -> AsyncIterator[KubernetesDriver]:
    driver = make()
    await driver.open()
    driver._records.claim_seconds = 1.0
    await blank(driver, 1)
    yield driver
    await end_pool(driver)
    await leave(driver)


async def crashed(make: Make, verb: str, owner: str, name: str, write: int) -> bool:
    """Whether the service had so many writes to be killed after."""
    words = (pickle.dumps(make).hex(), verb, owner, name, str(write))
    process = await asyncio.to_thread(
        lambda: the_server().start(words, dict(os.environ), Path("/"), 2, module=CRASHING)
    )
    code = await asyncio.to_thread(process.wait, 240)
    assert code in (0, -signal.SIGKILL)
    return code != 0


async def go_on(driver: KubernetesDriver, owner: str) -> tuple[str, str]:
    """What the next call does: the chat's sandbox, and what its file says."""
    name = await driver.find(owner)
    if name is None and (name := await driver.take_blank(owner)) is None:
        name = new_name()
    await driver.start(name, owner)
    machine = await connect(driver, name)
    try:
        return name, (await machine.output("cat ~/kept 2>/dev/null"))[1].decode()
    finally:
        machine.close()


async def check_one_pod(driver: KubernetesDriver, owner: str) -> None:
    """After a sweep the chat has the one pod that its record names, and nothing else is there."""
    await driver.sweeper.sweep(EVERYTHING)
    record = await driver._records.of_owner(owner)
    assert record is not None
    pods = await owners_of_pods(driver._client, driver._terms.instance)
    assert pods == {record.pod: owner}
    assert [one.owner for one in await driver._records.all() if one.kind == "chat"] == [owner]


async def rounds(make: Make, driver: KubernetesDriver, verb: str) -> AsyncIterator[tuple[str, str]]:
    """After each write; afterwards the chat goes, and what there was of it."""
    for write in count(1):
        owner, name = f"{write:032x}", new_name()
        if verb == "claim":
            await blank(driver, 1)
        more = await crashed(make, verb, owner, name, write)
        yield owner, name
        left = await driver.find(owner)
        if left is not None:
            await driver.delete(left)
        if not more:
            assert write > WRITES[verb]
            return


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", ["claim", "start"])
async def test_a_crash_within_a_first_start(make: Make, driver: KubernetesDriver, verb: str) -> None:
    async for owner, _ in rounds(make, driver, verb):
        name, _ = await go_on(driver, owner)
        assert await driver.find(owner) == name
        await check_one_pod(driver, owner)


@pytest.mark.timeout(600)
async def test_a_crash_after_a_start_that_failed_costs_no_file_later(make: Make, driver: KubernetesDriver) -> None:
    """What is to be removed of it is not what the chat has from then on, in the trash or not."""
    async for owner, _ in rounds(make, driver, "start in vain"):
        name, _ = await go_on(driver, owner)
        machine = await connect(driver, name)
        await machine.output("echo kept > ~/kept; sync ~/kept")
        machine.close()
        await driver.discard(name, NOTE)
        async with asyncio.timeout(60):
            while await driver._removal._has_pods(name):
                await asyncio.sleep(0.1)
        await driver.sweeper.sweep(EVERYTHING)
        assert [one.name for one in await driver.discarded()] == [name]
        await driver.restore(name, owner)
        assert await go_on(driver, owner) == (name, "kept\n")
        await check_one_pod(driver, owner)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", ["wake", "stop"])
async def test_a_crash_within_a_wake_or_a_stop_loses_no_file(make: Make, driver: KubernetesDriver, verb: str) -> None:
    async for owner, name in rounds(make, driver, verb):
        assert await go_on(driver, owner) == (name, "kept\n")
        await check_one_pod(driver, owner)


@pytest.mark.timeout(600)
async def test_a_crash_within_a_deletion(make: Make, driver: KubernetesDriver) -> None:
    """The chat has all of it or nothing, and what is deleted does not come back."""
    async for owner, name in rounds(make, driver, "delete"):
        found = await driver.find(owner)
        assert found in (name, None)
        now, kept = await go_on(driver, owner)
        assert (now == name, kept) == ((True, "kept\n") if found else (False, ""))
        await check_one_pod(driver, owner)


@pytest.mark.timeout(600)
async def test_a_crash_within_the_removal_of_files_is_made_up_for(make: Make, driver: KubernetesDriver) -> None:
    async for _, name in rounds(make, driver, "remove files"):
        await driver.sweeper.sweep(EVERYTHING)
        assert not (await driver._records.of_sandbox(name))
        await driver.sweeper.sweep(EVERYTHING)
        found, _ = await driver._client.list("pods", "app.kubernetes.io/name=cubicle-removal")
        assert [pod for pod in found if not pod["metadata"].get("deletionTimestamp")] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", ["discard", "restore"])
async def test_a_crash_within_a_discard_or_a_restore(make: Make, driver: KubernetesDriver, verb: str) -> None:
    """It is in the trash or with its chat, not both and not neither."""
    async for owner, name in rounds(make, driver, verb):
        found = await driver.find(owner)
        in_trash = name in [one.name for one in await driver.discarded()]
        assert (found == name) is not in_trash
        if in_trash:
            await driver.restore(name, owner)
        assert await go_on(driver, owner) == (name, "kept\n")
        await check_one_pod(driver, owner)


@pytest.mark.timeout(600)
async def test_a_crash_within_a_sweep_is_made_up_for_by_the_next(make: Make, driver: KubernetesDriver) -> None:
    async for _ in rounds(make, driver, "sweep"):
        await driver.sweeper.sweep(EVERYTHING)
        async with asyncio.timeout(120):  # files go when no pod can write them any more
            while [one.kind for one in await driver._records.all()]:
                await driver.sweeper.sweep(EVERYTHING)
                await driver._removal.remove_now()
                await asyncio.sleep(0.2)
        assert await owners_of_pods(driver._client, driver._terms.instance) == {}
        programs, _ = await driver._client.list("configmaps", "app.kubernetes.io/name=cubicle-guest")
        mine = [
            one["metadata"]["name"] for one in programs if one["metadata"]["name"].startswith(driver._terms.instance)
        ]
        assert mine == [template.programs_name(driver._terms.instance)]
