"""The record of a chat has one holder: what another program of the service wrote, and what a replica that was cut off may
not do any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.objects import BOUND, Record
from cubicle.machine.errors import SandboxError, StartFailed
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.kubernetes import cluster
from tests.support.emptying import leave

OWNER = "a" * 32
Make = Callable[[], KubernetesDriver]


@pytest.fixture
async def make(tmp_path: Path) -> Make:
    return await asyncio.to_thread(cluster.make_small, tmp_path)


@pytest.fixture
async def replica(make: Make) -> AsyncIterator[KubernetesDriver]:
    """It owns the chat, which has no sandbox yet."""
    driver = make()
    await driver.open()
    await driver.take_over(OWNER)
    yield driver
    await leave(driver)


@pytest.fixture
async def other(make: Make, replica: KubernetesDriver) -> AsyncIterator[KubernetesDriver]:
    """Another replica, or the command line."""
    driver = make()
    await driver.open()
    yield driver
    await driver.close()


async def _yes(owner: str) -> bool:
    return True


@pytest.mark.parametrize(
    "act",
    [
        lambda driver, name: driver.stop(name),
        lambda driver, name: driver.delete(name),
        lambda driver, name: driver.discard(name, TrashNote(None, "age", 0.0)),
    ],
    ids=["stop", "delete", "discard"],
)
async def test_a_replica_ends_nothing_of_a_chat_that_another_has_taken(
    replica: KubernetesDriver, other: KubernetesDriver, act: Callable[[KubernetesDriver, str], Awaitable[None]]
) -> None:
    """It was cut off while the chat was used elsewhere, and believes that nobody has used it since."""
    name = new_name()
    assert await replica._records.create(Record("chat", name, OWNER, pod=name, step=BOUND)) is not None
    await other.take_over(OWNER)
    with pytest.raises(SandboxError, match="Another replica"):
        await act(replica, name)
    record = await other._records.of_owner(OWNER)
    assert record is not None
    assert (record.sandbox, record.step) == (name, BOUND)
    await other.delete(name)  # whoever has it may
    assert await other.find(OWNER) is None


@pytest.mark.parametrize(
    "act",
    [lambda driver, name: driver.delete(name), lambda driver, name: driver.discard(name, TrashNote(None, "age", 0.0))],
    ids=["delete", "discard"],
)
async def test_a_chat_that_another_replica_takes_while_its_pod_is_ended_keeps_its_sandbox(
    replica: KubernetesDriver,
    other: KubernetesDriver,
    act: Callable[[KubernetesDriver, str], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This one stood still for so long that it counted as dead; there is use of the chat that it does not know of."""
    name, stop = new_name(), replica._stop
    await replica.start(name, OWNER)

    async def slow(sandbox: str, record: Record | None) -> bool:
        ended = await stop(sandbox, record)
        await other.take_over(OWNER)
        return ended

    monkeypatch.setattr(replica, "_stop", slow)
    with pytest.raises(SandboxError, match="Another replica"):
        await act(replica, name)
    record = await other._records.of_owner(OWNER)
    assert record is not None
    assert (record.sandbox, record.step, record.holder) == (name, BOUND, other._records.holder)
    await other.delete(name)


async def test_a_sandbox_that_the_command_line_gave_a_chat_is_used_by_the_chats_owner(
    replica: KubernetesDriver, other: KubernetesDriver
) -> None:
    """As `cubicle undelete` does, while a replica owns the chat."""
    name = new_name()
    await other.start(name, OWNER)
    with pytest.raises(StartFailed, match="Another replica"):
        await replica.start(name, OWNER)
    replica.owns = _yes
    await replica.start(name, OWNER)
    machine = await connect(replica, name)
    await machine.ping(10)
    machine.close()
    await replica.stop(name)
