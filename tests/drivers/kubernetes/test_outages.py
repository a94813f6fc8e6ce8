"""Parts of a real cluster fail: a node is drained or cut off, the API server is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.machine.errors import Gone, SandboxError
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.kubernetes import cluster
from tests.drivers.kubernetes.test_claims import blank, end_pool, owners_of_pods

pytestmark = [pytest.mark.kubernetes, pytest.mark.serial]
CHAT = Chat("chat", "somebody")


@asynccontextmanager
async def serving(folder: Path, pool_size: int = 0) -> AsyncIterator[tuple[Fleet, KubernetesDriver]]:
    driver = (await asyncio.to_thread(cluster.make, folder, pool_size=pool_size))()
    async with Fleet(driver, ChatIndex(folder / "index"), pool_size=pool_size) as fleet:
        yield fleet, driver
        for seen in await driver.list():
            if seen.owner:
                await driver.delete(seen.name)
        if pool_size:
            await end_pool(driver)


async def node_of(driver: KubernetesDriver, chat: Chat) -> str:
    record = await driver._records.of_owner(chat.digest)
    assert record is not None
    pod = await driver._client.get("pods", record.pod)
    assert pod is not None
    return str(pod["spec"]["nodeName"])


async def run(fleet: Fleet, command: str) -> str:
    async with fleet.lease(CHAT) as machine:
        return (await machine.output(command))[1].decode()


async def run_until_done(fleet: Fleet, command: str, seconds: float) -> tuple[str, float]:
    """As a client that tries again; and how long that took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await run(fleet, command), time.monotonic() - began
            except SandboxError:
                await asyncio.sleep(1)


async def in_thread(*words: str) -> None:
    await asyncio.to_thread(cluster.kubectl, *words)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool_size", [pytest.param(0, marks=pytest.mark.long), 1])
async def test_a_drained_node_moves_its_chats_with_their_files_and_says_so(tmp_path: Path, pool_size: int) -> None:
    async with serving(tmp_path, pool_size) as (fleet, driver):
        if pool_size:
            await blank(driver, 1)
        await run(fleet, "echo kept > ~/kept")
        node = await node_of(driver, CHAT)
        began = asyncio.Event()

        async def long_call() -> None:
            async with fleet.lease(CHAT) as machine:
                began.set()
                await machine.output("sleep 300")

        call = asyncio.ensure_future(long_call())
        await began.wait()
        try:
            await in_thread("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s")
            with pytest.raises(Gone, match=r"node is being drained.*files are kept"):
                async with asyncio.timeout(60):
                    await call
            assert await run(fleet, "cat ~/kept") == "kept\n"
            assert await node_of(driver, CHAT) != node
        finally:
            await in_thread("uncordon", node)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_chat_whose_node_is_cut_off_goes_on_at_another_with_its_files(tmp_path: Path) -> None:
    ours = await asyncio.to_thread(cluster.private)
    async with serving(tmp_path) as (fleet, driver):
        await run(fleet, "echo kept > ~/kept; sync ~/kept")
        node = await node_of(driver, CHAT)
        await asyncio.to_thread(ours.cut, node)
        try:
            kept, seconds = await run_until_done(fleet, "cat ~/kept", 240)
            assert kept == "kept\n"
            assert await node_of(driver, CHAT) != node
            assert seconds < 150
        finally:
            await asyncio.to_thread(ours.cut, node, False)
            await in_thread("wait", "--for=condition=Ready", f"node/{node}", "--timeout=100s")
        # The node comes back and ends what it still had: one pod is left.
        async with asyncio.timeout(120):
            while len(await pods_of(driver)) > 1:
                await asyncio.sleep(0.5)
        assert await run(fleet, "cat ~/kept") == "kept\n"


async def pods_of(driver: KubernetesDriver) -> list[str]:
    found, _ = await driver._client.list("pods", f"cubicle.dev/chat={CHAT.digest}")
    return [pod["metadata"]["name"] for pod in found]


async def answering(driver: KubernetesDriver) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                await driver.list()
            except SandboxError:
                await asyncio.sleep(0.5)
            else:
                return


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_chats_go_on_while_the_api_server_is_dead_and_new_ones_do_when_it_is_back(tmp_path: Path) -> None:
    ours = await asyncio.to_thread(cluster.private)
    other = Chat("other", "somebody")
    async with serving(tmp_path, pool_size=2) as (fleet, driver):
        await blank(driver, 2)
        await run(fleet, "echo kept > ~/kept; (sleep 2; echo late > ~/late) >/dev/null 2>&1 &")
        await asyncio.to_thread(ours.kill_api_server)
        try:
            assert await run(fleet, "cat ~/kept") == "kept\n"
            (await connect(driver, await name_of(fleet))).close()
            began = time.monotonic()
            with pytest.raises(SandboxError, match="API server"):
                async with fleet.lease(other):
                    pass
            assert time.monotonic() - began < 40
        finally:
            await asyncio.to_thread(ours.start_api_server)
        await answering(driver)
        async with asyncio.timeout(60):
            while await run(fleet, "cat ~/late 2>/dev/null") != "late\n":
                await asyncio.sleep(0.2)
        async with fleet.lease(other) as machine:
            assert (await machine.output("echo new"))[1] == b"new\n"
        await driver.sweeper.sweep(-1e9)
        found = await owners_of_pods(driver._client, driver._terms.instance)
        assert sorted(found.values()) == sorted([CHAT.digest, other.digest])


async def name_of(fleet: Fleet) -> str:
    seen = fleet.state(CHAT)
    assert seen is not None
    return seen.name


@pytest.mark.timeout(600)
async def test_claims_within_which_the_api_server_is_killed_are_finished_or_made_again(tmp_path: Path) -> None:
    ours = await asyncio.to_thread(cluster.private)
    owners = [f"{number:032x}" for number in range(8)]
    async with serving(tmp_path, pool_size=8) as (_, driver):
        driver._records.claim_seconds = 1.0
        await blank(driver, 8)

        async def one(number: int, owner: str) -> str | None:
            await asyncio.sleep(0.01 * number)
            return await driver.take_blank(owner)

        claims = [asyncio.ensure_future(one(number, owner)) for number, owner in enumerate(owners)]
        await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(ours.kill_api_server)
        done = await asyncio.gather(*claims, return_exceptions=True)
        await asyncio.to_thread(ours.start_api_server)
        await answering(driver)
        assert [one for one in done if isinstance(one, BaseException) and not isinstance(one, SandboxError)] == []
        for owner, first in zip(owners, done, strict=True):
            name = await driver.find(owner)
            if isinstance(first, str):
                assert name == first
            await driver.start(name or new_name(), owner)
        await driver.sweeper.sweep(-1e9)
        found = await owners_of_pods(driver._client, driver._terms.instance)
        assert sorted(found.values()) == owners
        up = [seen.owner for seen in await driver.list() if seen.owner and seen.state is State.RUNNING]
        assert sorted(up) == owners
