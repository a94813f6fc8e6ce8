"""Sandboxes that are restored in the same moment in which they are deleted from the trash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.objects import Record
from cubicle.machine.errors import NotRunning
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.kubernetes import cluster
from tests.support.emptying import leave

OWNER = "a" * 32
NOTE = TrashNote(None, "test", 0.0)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[KubernetesDriver]:
    driver = (await asyncio.to_thread(cluster.make_small, tmp_path))()
    await driver.open()
    yield driver
    await leave(driver)


async def output(driver: KubernetesDriver, name: str, command: str) -> str:
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    try:
        return (await machine.output(command))[1].decode()
    finally:
        machine.close()


async def in_trash(driver: KubernetesDriver) -> str:
    name = new_name()
    await output(driver, name, "echo kept > ~/kept")
    await driver.discard(name, NOTE)
    return name


async def check_that_it_is_kept_in_the_trash(driver: KubernetesDriver, name: str) -> None:
    await driver.discard(name, NOTE)
    await driver._removal.remove_now()
    assert [each.name for each in await driver.discarded()] == [name]
    await driver.restore(name, OWNER)
    assert await output(driver, name, "cat ~/kept") == "kept\n"


async def test_what_is_restored_while_it_is_deleted_is_not_removed_later(
    driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, request = await in_trash(driver), driver._removal.request

    async def late(sandbox: str) -> None:
        await driver.restore(name, OWNER)
        await request(sandbox)

    monkeypatch.setattr(driver._removal, "request", late)
    assert not await driver.purge(name)
    monkeypatch.undo()
    assert await driver.find(OWNER) == name
    await check_that_it_is_kept_in_the_trash(driver, name)


async def test_what_is_deleted_while_it_is_restored_is_no_chats(
    driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go: the chat would find a sandbox without them."""
    name, create = await in_trash(driver), driver._records.create

    async def late(record: Record) -> Record | None:
        monkeypatch.undo()
        assert await driver.purge(name)
        return await create(record)

    monkeypatch.setattr(driver._records, "create", late)
    with pytest.raises(NotRunning, match="no such sandbox"):
        await driver.restore(name, OWNER)
    assert await driver.find(OWNER) is None


async def test_a_deletion_that_a_crash_left_beside_a_chats_record_removes_nothing_from_the_trash(
    driver: KubernetesDriver,
) -> None:
    name = new_name()
    await output(driver, name, "echo kept > ~/kept")
    assert await driver._records.create(Record("removed", name)) is not None
    await check_that_it_is_kept_in_the_trash(driver, name)


async def test_a_blank_one_that_a_chat_has_by_now_keeps_its_files(
    driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cubicle rm --all` saw it before."""
    name, stop = new_name(), driver._stop
    await driver.start(name, None)

    async def late(sandbox: str, record: Record | None) -> bool:
        monkeypatch.undo()
        await output(driver, name, "echo kept > ~/kept")
        return await stop(sandbox, record)

    monkeypatch.setattr(driver, "_stop", late)
    assert not await driver.delete_blank(name)
    await check_that_it_is_kept_in_the_trash(driver, name)
