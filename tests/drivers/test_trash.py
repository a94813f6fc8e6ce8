"""The trash of every driver: a removed sandbox comes back with its files, or is gone for good."""

from __future__ import annotations

import asyncio
import time

import pytest

from cubicle.core.chat import Chat
from cubicle.machine.errors import NotRunning, OwnerHasSandbox, StartFailed
from cubicle.sandbox.driver import Driver, State
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.makers import STORING, Maker

pytestmark = pytest.mark.parametrize("make_driver", STORING, indirect=True)
CHAT, OTHER = Chat("chat", "somebody"), Chat("other")
NOTE = TrashNote(CHAT, "removed by a test", time.time())


async def make(driver: Driver, chat: Chat = CHAT) -> str:
    """A sandbox with a file of each kind."""
    name = new_name()
    await driver.start(name, chat.digest)
    machine = await connect(driver, name)
    exit, output = await machine.output(
        "echo kept > ~/home; echo kept > /mnt/user-data/outputs/out; echo kept > /tmp/t"
    )
    assert exit.code == 0, output
    await machine.write("/mnt/user-data/uploads/up", b"kept", as_root=True)
    machine.close()
    return name


async def read(driver: Driver, name: str, chat: Chat = CHAT) -> str:
    await driver.start(name, chat.digest)
    machine = await connect(driver, name)
    try:
        return (await machine.output("cat ~/home /mnt/user-data/*/* 2>/dev/null"))[1].decode()
    finally:
        machine.close()


async def test_a_discarded_sandbox_is_in_the_trash_alone_and_comes_back_with_its_files(driver: Driver) -> None:
    name = await make(driver)
    assert await driver.find(CHAT.digest) == name
    await driver.discard(name, NOTE)
    assert await driver.list() == []
    assert await driver.find(CHAT.digest, name) is None
    (found,) = await driver.discarded()
    assert (found.name, found.owner) == (name, CHAT.digest)
    assert found.note is not None
    assert (found.note.chat, found.note.reason, found.note.at) == (CHAT, NOTE.reason, NOTE.at)
    assert found.note.size is not None
    assert found.note.size > 0
    with pytest.raises(NotRunning):
        await driver.connect(name)
    with pytest.raises(StartFailed, match="trash"):
        await driver.start(name, CHAT.digest)
    await driver.restore(name, CHAT.digest)
    assert await driver.discarded() == []
    assert [(seen.name, seen.owner, seen.state) for seen in await driver.list()] == [(name, CHAT.digest, State.STOPPED)]
    assert await driver.find(CHAT.digest) == name
    assert await read(driver, name) == "kept\nkept\nkept"


async def test_the_owner_of_a_discarded_sandbox_has_a_new_one_at_once(driver: Driver) -> None:
    old = await make(driver)
    await driver.discard(old, NOTE)
    new = new_name()
    assert await read(driver, new) == ""
    assert await driver.find(CHAT.digest) == new
    with pytest.raises(OwnerHasSandbox):
        await driver.restore(old, CHAT.digest)
    assert [each.name for each in await driver.discarded()] == [old]
    await driver.restore(old, OTHER.digest)
    assert {seen.name: seen.owner for seen in await driver.list()} == {new: CHAT.digest, old: OTHER.digest}
    assert await read(driver, old, OTHER) == "kept\nkept\nkept"


async def test_deleting_from_the_trash_is_for_good(driver: Driver, make_driver: Maker) -> None:
    name, stays = await make(driver), await make(driver, OTHER)
    await driver.discard(name, NOTE)
    await driver.delete(name)
    assert await driver.discarded() == []
    assert [seen.name for seen in await driver.list()] == [stays]
    with pytest.raises(NotRunning):
        await driver.restore(name, CHAT.digest)


async def test_one_that_became_somebodys_is_not_deleted_as_blank(driver: Driver) -> None:
    name = await make(driver)
    assert not await driver.delete_blank(name)
    await driver.discard(name, NOTE)
    await driver.delete_blank(name)
    await driver.restore(name, CHAT.digest)
    assert await read(driver, name) == "kept\nkept\nkept"
    assert await driver.delete_blank(new_name())


async def test_what_was_restored_is_not_purged(driver: Driver) -> None:
    name = await make(driver)
    await driver.discard(name, NOTE)
    await driver.restore(name, CHAT.digest)
    assert not await driver.purge(name)
    assert await read(driver, name) == "kept\nkept\nkept"
    await driver.discard(name, NOTE)
    assert await driver.purge(name)
    assert not await driver.purge(name)
    assert await driver.discarded() == []
    assert await driver.list() == []


async def test_the_trash_outlives_the_driver(driver: Driver, make_driver: Maker) -> None:
    name = await make(driver)
    await driver.discard(name, NOTE)
    await driver.close()
    await driver.open()
    assert [each.name for each in await driver.discarded()] == [name]
    await driver.restore(name, CHAT.digest)
    assert await read(driver, name) == "kept\nkept\nkept"


async def test_what_is_not_there_is_not_discarded_nor_restored(driver: Driver) -> None:
    await driver.discard(new_name(), NOTE)
    assert await driver.discarded() == []
    with pytest.raises(NotRunning):
        await driver.restore(new_name(), CHAT.digest)
    name = await make(driver)
    with pytest.raises(NotRunning):
        await driver.restore(name, CHAT.digest)


async def test_of_two_that_restore_to_one_owner_one_does(driver: Driver) -> None:
    first = await make(driver)
    await driver.discard(first, NOTE)
    second = await make(driver)
    await driver.discard(second, NOTE)
    done = await asyncio.gather(
        *(driver.restore(name, CHAT.digest) for name in (first, second)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in done) == ["NoneType", "OwnerHasSandbox"]
    assert len(await driver.list()) == 1
    assert len(await driver.discarded()) == 1
