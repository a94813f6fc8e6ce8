"""What only a real cluster shows: isolation, kubelets, volumes, rights."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cubicle.drivers.common.checks import Verdict
from cubicle.drivers.kubernetes import checks
from cubicle.drivers.kubernetes.client import ApiError
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.isolation import runner
from cubicle.isolation.runner import ProbeVerdict, Report
from cubicle.machine.errors import StartFailed
from cubicle.sandbox.driver import State
from cubicle.sandbox.warm_pool import connect, new_name
from cubicle.settings_kubernetes import PodFiles, PodIsolation
from tests.drivers.kubernetes import cluster
from tests.drivers.kubernetes.test_claims import blank, end_pool
from tests.drivers.sight import guest_on_host
from tests.support.emptying import leave

pytestmark = pytest.mark.kubernetes
OWNER = "a" * 32
Change = Callable[[PodTerms], PodTerms]


async def opened(folder: Path, change: Change = lambda terms: terms, pool_size: int = 0) -> KubernetesDriver:
    driver = (await asyncio.to_thread(cluster.make, folder, pool_size=pool_size, change=change))()
    await driver.open()
    return driver


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[KubernetesDriver]:
    driver = await opened(tmp_path)
    yield driver
    await leave(driver)


async def proved(driver: KubernetesDriver) -> Report:
    host = await driver.host()
    return await runner.prove(driver, cluster.LIMITS, kernel=host.kernel, here=host.here, exhaust=False)


@pytest.mark.timeout(600)
async def test_no_way_out_of_a_pod_is_open(driver: KubernetesDriver) -> None:
    report = await proved(driver)
    assert report.missing == []
    assert report.unchecked == []
    network = {finding.attempt for finding in report.findings if finding.layer == "network"}
    assert {"this service", "the API server", "the guest of another sandbox", "a broadcast"} <= network
    assert len(report.findings) > 90


@pytest.mark.timeout(600)
async def test_the_check_finds_the_ways_that_are_open_where_nothing_closes_the_network(tmp_path: Path) -> None:
    """The network of the private cluster enforces no policy."""
    driver = await opened(tmp_path, lambda terms: replace(terms, isolation=PodIsolation.POLICY))
    try:
        report = await proved(driver)
        opened_ways = {one.attempt for one in report.findings if one.verdict is ProbeVerdict.MISSING}
        assert {"this service", "the API server", "the guest of another sandbox"} <= opened_ways
        assert "a datagram to this service" in opened_ways
        assert "from outside to a port of a command" in opened_ways
    finally:
        await leave(driver)


async def test_a_pod_that_cannot_be_made_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    driver = await opened(tmp_path, lambda terms: replace(terms, image="registry.invalid/no-such-image:1"))
    try:
        with pytest.raises(StartFailed, match="Image"):
            await driver.start(new_name(), OWNER)
        assert await driver.list() == []
        assert await driver.find(OWNER) is None
    finally:
        await leave(driver)


async def test_the_service_may_neither_read_secrets_nor_enter_pods(driver: KubernetesDriver) -> None:
    for path in (driver._client.path("secrets"), "/api/v1/nodes"):
        with pytest.raises(ApiError) as refused:
            await driver._client.request("GET", path)
        assert refused.value.status == 403
    name = new_name()
    await driver.start(name, OWNER)
    with pytest.raises(ApiError) as refused:
        await driver._client.request("POST", driver._client.path("pods", name) + "/exec?command=id&stdout=1")
    assert refused.value.status == 403


async def test_the_guest_of_a_blank_pod_that_is_killed_is_back_with_its_files(tmp_path: Path) -> None:
    """The cluster restarts pods of a Deployment."""
    driver = await opened(tmp_path, pool_size=1)
    try:
        await blank(driver, 1)
        name = str(await driver.take_blank(OWNER))
        machine = await connect(driver, name)
        await machine.output("echo kept > ~/kept")
        os.kill(await guest_on_host(driver, machine), signal.SIGKILL)
        async with asyncio.timeout(60):
            await machine.gone()
        machine.close()
        await driver.start(name, OWNER)
        machine = await connect(driver, name)
        assert (await machine.output("cat ~/kept"))[1] == b"kept\n"
        machine.close()
    finally:
        await end_pool(driver)
        await leave(driver)


async def test_a_change_of_terms_replaces_blank_pods_and_leaves_the_others(tmp_path: Path) -> None:
    driver = await opened(tmp_path, pool_size=2)
    await blank(driver, 2)
    name = str(await driver.take_blank(OWNER))
    await driver.close()
    limits = replace(cluster.LIMITS, cpus=1.0)
    driver = await opened(tmp_path, lambda terms: replace(terms, limits=limits), pool_size=2)
    try:
        async with asyncio.timeout(120):
            while driver._blank.choose() is None:
                async with driver._blank._follower.changed:
                    await driver._blank._follower.changed.wait()
        assert [(seen.name, seen.state) for seen in await driver.list() if seen.owner] == [(name, State.RUNNING)]
    finally:
        await end_pool(driver)
        await leave(driver)


async def test_the_doctor_finds_what_a_service_needs_and_what_it_lacks(driver: KubernetesDriver) -> None:
    ours = cluster.test_cluster()
    found = await checks.run(ours.find, ours.image, PodFiles.SHARED, "cubicle-files")
    assert {check.name: check.verdict for check in found} == {
        **dict.fromkeys(("sandbox image", "cluster", "rights", "files"), Verdict.GOOD)
    }
    found = await checks.run(ours.find, "", PodFiles.SHARED, "no-such-claim")
    assert {check.name for check in found if check.verdict is Verdict.MISSING} == {"sandbox image", "files"}


async def test_a_sandbox_with_a_claim_of_its_own_keeps_its_files(tmp_path: Path) -> None:
    kind = await asyncio.to_thread(cluster.make_volumes, 4)

    def change(terms: PodTerms) -> PodTerms:
        return replace(terms, files=PodFiles.CLAIM, storage_class=kind)

    driver = await opened(tmp_path, change, pool_size=1)
    try:
        await blank(driver, 1)
        claimed, cold = str(await driver.take_blank(OWNER)), new_name()
        await driver.start(cold, "b" * 32)
        await end_pool(driver)
        for name, owner in ((claimed, OWNER), (cold, "b" * 32)):
            machine = await connect(driver, name)
            await machine.output("echo kept > ~/kept")
            machine.close()
            await driver.stop(name)
            async with asyncio.timeout(120):
                while await driver._client.get("pods", name) is not None:
                    await asyncio.sleep(0.2)
            claim = await driver._client.get("persistentvolumeclaims", f"{name}-files")
            assert claim is not None
            assert not claim["metadata"].get("ownerReferences")
            await driver.start(name, owner)
            machine = await connect(driver, name)
            assert (await machine.output("cat ~/kept"))[1] == b"kept\n"
            machine.close()
            await driver.delete(name)
        async with asyncio.timeout(120):
            while await driver._records.all():
                await asyncio.sleep(0.2)
        for name in (claimed, cold):
            claim = await driver._client.get("persistentvolumeclaims", f"{name}-files")
            assert claim is None or claim["metadata"].get("deletionTimestamp")
    finally:
        await end_pool(driver)
        await leave(driver)
