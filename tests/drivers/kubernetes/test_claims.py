"""Chats that take blank pods, at once and through crashes: each has one pod, and no pod has two chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.objects import BLANK as BLANK_STATE
from cubicle.drivers.kubernetes.objects import (
    BOUND,
    CHAT,
    DELETING,
    STATE,
    PodSeen,
    Record,
    pods_selector,
    records_selector,
)
from cubicle.drivers.kubernetes.pods import PodLeft
from cubicle.machine.errors import OwnedByAnother, OwnerHasSandbox, SandboxError
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.pool_demand import PoolDemand
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import WarmPool, connect, new_name
from tests.drivers.kubernetes import cluster
from tests.support.emptying import leave

OWNER, OTHER = "a" * 32, "b" * 32
BLANK = 3
"""Pods that wait for a chat."""
Make = Callable[[], KubernetesDriver]
SMALL = pytest.param(cluster.make_small, id="small-cluster")
REAL = pytest.param(cluster.make, id="kubernetes", marks=pytest.mark.kubernetes)
SELDOM = [SMALL, pytest.param(cluster.make, id="kubernetes", marks=[pytest.mark.kubernetes, pytest.mark.long])]
"""What a write leaves is the same in the small cluster, which every run tries."""
seldom = pytest.mark.parametrize("make", SELDOM, indirect=True)


@pytest.fixture(params=[SMALL, REAL])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    found: Make = request.param(tmp_path, pool_size=BLANK)
    return found


@pytest.fixture
async def driver(make: Make) -> AsyncIterator[KubernetesDriver]:
    driver = make()
    await driver.open()
    await blank(driver, BLANK)
    yield driver
    await end_pool(driver)
    await leave(driver)


async def blank(driver: KubernetesDriver, count: int) -> None:
    """Wait until so many blank pods can be had."""
    try:
        async with asyncio.timeout(120):
            while driver._blank.count() < count:
                async with driver._blank._follower.changed:
                    await driver._blank._follower.changed.wait()
    except TimeoutError:
        said = await asyncio.to_thread(cluster.warnings, driver._client.cluster.namespace)
        pytest.fail(f"{driver._blank.count()} of {count} blank pods run after two minutes. The cluster says:\n{said}")


async def resize_pool(driver: KubernetesDriver, size: int) -> None:
    name = f"{driver._terms.instance}-blank"
    await driver._client.patch("deployments", name, {"spec": {"replicas": size}})


async def end_pool(driver: KubernetesDriver) -> None:
    await resize_pool(driver, 0)


async def owners_of_pods(client: KubernetesClient, instance: str) -> dict[str, str]:
    found, _ = await client.list("pods", f"app.kubernetes.io/instance={instance}")
    return {
        pod["metadata"]["name"]: pod["metadata"]["labels"][CHAT]
        for pod in found
        if CHAT in pod["metadata"]["labels"] and not pod["metadata"].get("deletionTimestamp")
    }


async def test_a_claim_gives_a_blank_pod_for_good_and_another_takes_its_place(driver: KubernetesDriver) -> None:
    name = await driver.take_blank(OWNER)
    assert name is not None
    machine = await connect(driver, name)
    await machine.output("echo kept > ~/kept")
    machine.close()
    assert await driver.find(OWNER) == name
    await blank(driver, BLANK)
    with pytest.raises(OwnerHasSandbox):
        await driver.take_blank(OWNER)
    await driver.stop(name)
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    assert (await machine.output("cat ~/kept"))[1] == b"kept\n"
    machine.close()


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
async def test_many_chats_claim_by_many_services_at_once(make: Make, driver: KubernetesDriver, rounds: int) -> None:
    chats = 20 if rounds > 1 else 8
    await resize_pool(driver, chats + 2)
    async with AsyncExitStack() as stack:
        services = [driver]
        for _ in range(2):
            services.append(make())
            await services[-1].open()
            stack.push_async_callback(services[-1].close)
        for number in range(rounds):
            for service in services:
                await blank(service, chats + 2)
            await claim_at_once(services, [f"{number:016x}{chat:016x}" for chat in range(chats)])
            print(f"round {number + 1}: {chats} chats, {chats} winners, {chats} pods")


async def claim_at_once(services: list[KubernetesDriver], owners: list[str]) -> None:
    """Each service claims for each owner: one has it, and no pod has two owners."""
    claims = [service.take_blank(owner) for owner in owners for service in services]
    done = await asyncio.gather(*claims, return_exceptions=True)
    won = [one for one in done if isinstance(one, str)]
    lost = [one for one in done if isinstance(one, OwnerHasSandbox)]
    assert [one for one in done if one not in (*won, *lost)] == []
    assert (len(won), len(lost)) == (len(owners), len(owners) * (len(services) - 1))
    assert len(set(won)) == len(owners)
    driver = services[0]
    labelled = await owners_of_pods(driver._client, driver._terms.instance)
    assert sorted(labelled.values()) == owners
    for owner in owners:
        name = str(await driver.find(owner))
        assert labelled[name] == owner
        await driver.delete(name)


async def test_a_crash_after_the_record_is_mended_by_the_next_call(driver: KubernetesDriver) -> None:
    pod = driver._blank.choose()
    assert pod is not None
    await driver._records.create(Record("chat", pod.name, OWNER, pod=pod.name))
    name = await driver.find(OWNER)
    assert name == pod.name
    await driver.start(name, OWNER)
    labelled = await owners_of_pods(driver._client, driver._terms.instance)
    assert labelled == {pod.name: OWNER}
    assert [seen.owner for seen in await driver.list() if seen.name == name] == [OWNER]


@seldom
async def test_a_crash_after_the_record_leaves_no_claim_on_what_another_took(driver: KubernetesDriver) -> None:
    pod = driver._blank.choose()
    assert pod is not None
    await driver._records.create(Record("chat", pod.name, OTHER, pod=pod.name))  # and crashed
    await driver.start(pod.name, OWNER)
    assert await driver.find(OWNER) == pod.name
    machine = await connect(driver, pod.name)
    await machine.output("echo secret > ~/secret")
    machine.close()
    await driver.stop(pod.name)
    # The pod and its label are gone, and the record of the other still names the sandbox.
    assert await driver.find(OTHER) is None
    assert [seen.owner for seen in await driver.list() if seen.name == pod.name] == [OWNER]
    with pytest.raises(OwnedByAnother):
        await driver.start(pod.name, OTHER)
    assert await driver.find(OWNER) == pod.name


@seldom
async def test_two_that_crashed_before_the_label_have_nothing_when_the_pod_is_gone(driver: KubernetesDriver) -> None:
    pod = driver._blank.choose()
    assert pod is not None
    for owner in (OWNER, OTHER):
        await driver._records.create(Record("chat", pod.name, owner, pod=pod.name))
    await driver._client.delete("pods", pod.found)
    async with asyncio.timeout(60):
        while await driver._client.get("pods", pod.name) is not None:
            await asyncio.sleep(0.1)
    driver._records.claim_seconds = 1.0  # for all that is known, a service is about to name another pod
    assert (await driver.find(OWNER), await driver.find(OTHER)) == (None, None)
    assert await driver._records.all() == []
    assert await driver.take_blank(OWNER) not in (None, pod.name)


@seldom
@pytest.mark.parametrize("end", ["delete", "discard"])
async def test_a_claim_that_crashed_gets_nothing_of_the_chat_that_took_the_pod_instead(
    driver: KubernetesDriver, end: str
) -> None:
    pod = driver._blank.choose()
    assert pod is not None
    await driver._records.create(Record("chat", pod.name, OTHER, pod=pod.name))  # and crashed
    await driver.start(pod.name, OWNER)
    machine = await connect(driver, pod.name)
    await machine.output("echo secret > ~/secret")
    machine.close()
    if end == "delete":
        await driver.delete(pod.name)
    else:
        await driver.discard(pod.name, TrashNote(Chat("chat", "somebody"), "", 0.0))
    driver._records.claim_seconds = 1.0
    assert await driver.find(OTHER) is None
    name = str(await driver.take_blank(OTHER))
    assert name != pod.name
    machine = await connect(driver, name)
    assert (await machine.output("ls ~"))[1] == b""
    machine.close()


@seldom
async def test_a_record_that_a_claim_lost_meanwhile_ends_the_claim_and_its_pod(driver: KubernetesDriver) -> None:
    """Another service has given the claim up: it stood still for longer than a claim may take."""
    pod = driver._blank.choose()
    assert pod is not None
    record = await driver._records.create(Record("chat", pod.name, OWNER, pod=pod.name))
    assert record is not None
    assert await driver._records.remove(record)
    taken = await driver._taker._labelled(record, pod)
    assert taken is not None
    with pytest.raises(SandboxError, match="another service"):
        await driver._taker._settled(record, taken)
    assert await owners_of_pods(driver._client, driver._terms.instance) == {}
    assert await driver.find(OWNER) is None


@seldom
async def test_a_crash_after_the_label_is_nothing(driver: KubernetesDriver) -> None:
    """Who only connects has the sandbox for good as well: its pod may go without a stop, as in a drain."""
    pod = driver._blank.choose()
    assert pod is not None
    record = await driver._records.create(Record("chat", pod.name, OWNER, pod=pod.name))
    assert record is not None
    assert await driver._blank.take(pod, record)
    assert await driver.find(OWNER) == pod.name
    machine = await connect(driver, pod.name)
    await machine.output("echo kept > ~/kept")
    machine.close()
    record = await driver._records.of_owner(OWNER)
    assert record is not None
    assert record.step == BOUND
    found = await driver._client.get("pods", pod.name)
    assert found is not None
    await driver._client.delete("pods", found)
    async with asyncio.timeout(60):
        while await driver._client.get("pods", pod.name) is not None:
            await asyncio.sleep(0.1)
    assert await driver.find(OWNER) == pod.name
    await driver.start(pod.name, OWNER)
    machine = await connect(driver, pod.name)
    assert (await machine.output("cat ~/kept"))[1] == b"kept\n"
    machine.close()


@seldom
async def test_a_crash_within_a_deletion_is_finished_by_whoever_comes(driver: KubernetesDriver) -> None:
    name = str(await driver.take_blank(OWNER))
    record = await driver._records.of_owner(OWNER)
    assert record is not None
    assert await driver._records.begin_delete(record) is not None
    assert name not in [seen.name for seen in await driver.list()]
    assert await driver.find(OWNER) is None
    kinds = {one.kind for one in await driver._records.all()}
    assert kinds == {"removed"}
    again = new_name()
    await driver.start(again, OWNER)
    assert await driver.find(OWNER) == again


async def test_a_pod_that_is_deleted_while_it_starts_is_made_again(driver: KubernetesDriver) -> None:
    """Its node is drained, say."""
    name = new_name()
    start = asyncio.ensure_future(driver.start(name, OWNER))
    async with asyncio.timeout(60):
        while (found := await driver._client.get("pods", name)) is None:
            await asyncio.sleep(0.01)
    await driver._client.delete("pods", found)
    await start
    machine = await connect(driver, name)
    machine.close()
    record = await driver._records.of_owner(OWNER)
    assert record is not None
    assert record.pod != name
    assert await owners_of_pods(driver._client, driver._terms.instance) == {record.pod: OWNER}


@seldom
async def test_a_pod_that_is_deleted_while_it_is_claimed_costs_the_chat_no_call(
    driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deleted(pod: PodSeen, epoch: int) -> None:
        monkeypatch.undo()
        found = await driver._client.get("pods", pod.name)
        assert found is not None
        await driver._client.delete("pods", found)
        async with asyncio.timeout(60):
            while await driver._client.get("pods", pod.name) is not None:
                await asyncio.sleep(0.05)
        await driver._pods.answering(pod, epoch)

    monkeypatch.setattr(driver._pods, "answering", deleted)
    machine = await WarmPool(driver, PoolDemand(BLANK, 0)).claim(Chat("chat"))
    assert machine is not None
    await machine.ping(10)
    machine.close()
    record = await driver._records.of_owner(Chat("chat").digest)
    assert record is not None
    assert record.pod != record.sandbox == machine.name


async def test_a_pod_that_is_gone_before_it_is_watched_is_not_waited_for(driver: KubernetesDriver) -> None:
    pod = driver._blank.choose()
    assert pod is not None
    assert await driver._client.delete("pods", pod.found, grace=0)
    async with asyncio.timeout(30):
        while await driver._client.get("pods", pod.name) is not None:
            await asyncio.sleep(0.01)
        with pytest.raises(PodLeft):
            await driver._pods.come_up(pod, 1, 60.0)


async def test_files_of_deleted_sandboxes_are_removed_by_a_pod(make: Make, driver: KubernetesDriver) -> None:
    name = str(await driver.take_blank(OWNER))
    await driver.delete(name)
    async with asyncio.timeout(120):
        while await driver._records.all():
            await asyncio.sleep(0.2)


async def test_the_sweeper_removes_what_no_record_stands_for(driver: KubernetesDriver) -> None:
    kept = str(await driver.take_blank(OWNER))
    pod = driver._blank.choose()
    assert pod is not None
    assert await driver._blank.take(pod, Record("chat", pod.name, OTHER))  # a label without a record
    gone = driver._blank.choose()
    assert gone is not None
    for number in range(2):  # records that name a pod of neither
        await driver._records.create(Record("chat", gone.name, f"{number:032x}", pod=gone.name))
    deleting = await driver._records.create(Record("chat", "box", "f" * 32, pod="box", step=DELETING))
    assert deleting is not None
    old = {"name": f"{driver._terms.instance}-guest-old", "labels": {}}
    old["labels"] = {
        "app.kubernetes.io/name": "cubicle-guest",
        "app.kubernetes.io/instance": driver._terms.instance,
    }
    await driver._client.create("configmaps", {"metadata": old, "data": {}})
    assert await driver.sweeper.hold()
    done = await driver.sweeper.sweep(-1e9)
    assert done == {
        "deletions finished": 1,
        "records without a sandbox": 2,
        "pods that no record names": 1,
        "programs that nobody uses": 1,
    }
    assert await owners_of_pods(driver._client, driver._terms.instance) == {kept: OWNER}
    again = await driver.sweeper.sweep(-1e9)
    assert not set(again) - {"pods that had removed files"}  # on a busy machine that is done only now


async def names_of_pods(driver: KubernetesDriver, state: str) -> set[str]:
    found, _ = await driver._client.list("pods", pods_selector(driver._terms.instance, **{STATE: state}))
    return {pod["metadata"]["name"] for pod in found if not pod["metadata"].get("deletionTimestamp")}


@seldom
async def test_no_chat_takes_a_sandbox_in_which_another_program_tries_the_isolation(
    make: Make, driver: KubernetesDriver
) -> None:
    """A replica that starts, or `cubicle doctor --prove`, beside services that serve: it deletes what it made."""
    checker, name = make(), new_name()
    await checker.open()
    try:
        await checker.start(name, None)
        assert name not in await names_of_pods(driver, BLANK_STATE)
        assert name in [seen.name for seen in await driver.list()]
    finally:
        await checker.delete(name)
        await checker.close()


@seldom
async def test_a_sandbox_of_a_check_that_was_cut_off_goes_after_a_while(make: Make, driver: KubernetesDriver) -> None:
    checker, name = make(), new_name()
    await checker.open()
    await checker.start(name, None)
    await checker.close()
    assert not (await driver.sweeper.sweep(0.0))["pods of checks that were cut off"]  # it may be under way
    assert (await driver.sweeper.sweep(-1e9))["pods of checks that were cut off"] == 1
    assert name not in await names_of_pods(driver, "apart")


@seldom
async def test_of_two_sweepers_one_works(make: Make, driver: KubernetesDriver) -> None:
    second = make()
    await second.open()
    assert await driver.sweeper.hold()
    assert not await second.sweeper.hold()
    assert await driver.sweeper.hold()
    await second.close()


@seldom
async def test_programs_that_a_service_finds_when_it_starts_are_in_use_from_then_on(
    make: Make, driver: KubernetesDriver
) -> None:
    """After a rollback they are old, and of no pod yet: the sweeper of the other version is about to remove them."""
    seen = await driver._client.get("configmaps", template.programs_name(driver._terms.instance))
    assert seen is not None
    second = make()
    await second.open()
    await second.close()
    assert not await driver._client.delete("configmaps", seen, version=True)


@seldom
async def test_a_record_that_nobody_can_read_is_left_alone(driver: KubernetesDriver) -> None:
    body = Record("chat", "box", OWNER, pod="box").body(driver._terms.instance)
    body["metadata"]["labels"]["cubicle.dev/sandbox"] = "NOT-A-NAME"
    await driver._client.create("leases", body)
    assert await driver.find(OWNER) is None
    with pytest.raises(OwnerHasSandbox):
        await driver.take_blank(OWNER)
    await driver.sweeper.sweep(-1e9)
    found, _ = await driver._client.list("leases", records_selector(driver._terms.instance))
    assert [one["metadata"]["name"] for one in found] == [body["metadata"]["name"]]
    await driver._client.delete("leases", found[0])


async def test_the_fleet_takes_from_the_clusters_pool(driver: KubernetesDriver, make: Make, tmp_path: Path) -> None:
    chat = Chat("chat", "somebody")
    second = make()
    async with Fleet(second, ChatIndex(tmp_path / "index"), pool_size=BLANK) as fleet:
        await blank(second, BLANK)
        async with fleet.lease(chat) as machine:
            assert (await machine.output("echo $HOME"))[1] == b"/home/assistant\n"
            assert machine.name.startswith(driver._terms.instance)
        await fleet.remove(chat, now=True)
