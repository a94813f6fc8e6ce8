"""A sandbox that takes all it can of what the kernel shares out leaves enough for its neighbour and for the host."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest

from cubicle.drivers.docker.driver import DockerDriver
from cubicle.isolation.exhaustion import RESOURCES, ExhaustionOutcome, Resource, exhausted
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.warm_pool import connect, new_name

pytestmark = pytest.mark.serial  # in an engine it takes terminals and inotify from every other test

SHARED_IN_AN_ENGINE = {
    "inotify instances",
    "inotify watches",
    "timers and pending signals",
    "terminals",
    "descriptors in flight",
    "pipe buffers",
}
"""What the sandboxes of an engine without gVisor take from each other: to it they are one user. docs/docker-isolation.md says so."""
LIMITED = {
    "inotify instances",
    "inotify watches",
    "timers and pending signals",
    "message queues",
    "terminals",
    "asynchronous I/O",
    "locked memory",
}
"""Of which a sandbox of the embedded driver has a limit of its own, which the hog must meet."""
GVISOR_MOST = 3000
"""gVisor takes nothing of it from the host: that many show it, and cost little."""


@pytest.fixture(scope="module")
async def pair(driver: Driver) -> AsyncIterator[tuple[Machine, Machine]]:
    names = [new_name(), new_name()]
    machines = []
    for name in names:
        await driver.start(name, None)
        machines.append(await connect(driver, name))
    yield machines[0], machines[1]
    for machine in machines:
        machine.close()
    for name in names:
        await driver.delete(name)


def is_gvisor(driver: Driver) -> bool:
    if isinstance(driver, DockerDriver):
        return driver.facts.gvisor
    return not driver.runtime.hands_over  # type: ignore[attr-defined]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.name)
async def test_nobody_goes_short(driver: Driver, pair: tuple[Machine, Machine], resource: Resource) -> None:
    gvisor = is_gvisor(driver)
    if gvisor:
        resource = dataclasses.replace(resource, most=min(resource.most, GVISOR_MOST))
    outcome = await exhausted(resource, *pair, here=True)
    assert outcome.host == "OK", outcome
    if isinstance(driver, DockerDriver) and not gvisor:
        assert outcome.neighbour == "OK" or outcome.resource in SHARED_IN_AN_ENGINE, outcome
        return
    assert outcome.problem == "", outcome
    if not gvisor and resource.name in LIMITED:
        assert not outcome.hog.startswith("OK"), outcome


def test_who_went_short_is_told() -> None:
    assert ExhaustionOutcome("x", "EMFILE 3", "OK", "OK").problem == ""
    assert ExhaustionOutcome("x", "EMFILE 3", "EMFILE", "OK").problem == "a neighbour: EMFILE"
    assert ExhaustionOutcome("x", "EMFILE 3", "OK", "EAGAIN").problem == "the host: EAGAIN"
    assert ExhaustionOutcome("x", "EMFILE 3", "UNTRIED gone").problem == "a neighbour: UNTRIED gone"
