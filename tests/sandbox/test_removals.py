"""What the command line removes beside a service, the service does not write to disk again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cubicle import removal
from cubicle.agents.budget import BudgetLimits, BudgetStore
from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.journal.journal import Journal
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.lifecycle import LifecycleEvent
from cubicle.sandbox.sharing import Alone
from cubicle.sandbox.trash import TrashNote
from tests.support.emptying import empty

CHAT = Chat("one")


@pytest.mark.parametrize("now", [True, False])
async def test_a_budget_is_not_written_back(tmp_path: Path, now: bool) -> None:
    driver, index = MemoryDriver(tmp_path), ChatIndex(tmp_path / "chats")
    budgets = BudgetStore(removal.budgets_folder(tmp_path), BudgetLimits())
    budgets.open()
    async with (
        Journal(removal.journal_folder(tmp_path)) as journal,
        Fleet(driver, ChatIndex(tmp_path / "chats"), trash_after=86400, journal=journal) as fleet,
    ):
        fleet.on_removed(budgets.forget)
        async with fleet.lease(CHAT) as machine:
            name = machine.name
        await budgets.begin(CHAT)
        await budgets.save(CHAT)
        await fleet._expiry.sweep()

        beside = MemoryDriver(tmp_path)  # what `cubicle rm` does
        if now:
            await beside.delete(name)
        else:
            await beside.discard(name, TrashNote(CHAT, "removed by hand", 0.0))
        index.remove(CHAT.digest)
        removal.remove_records(tmp_path, CHAT.digest)
        await budgets.begin(CHAT)
        await budgets.save(CHAT)  # a call of a model was under way: the record is there again
        assert (removal.budgets_folder(tmp_path) / CHAT.digest).exists()

        await fleet._expiry.sweep()
        await budgets.save(CHAT)
        assert not (removal.budgets_folder(tmp_path) / CHAT.digest).exists()
        assert not fleet.has(CHAT)
        async with fleet.lease(CHAT) as machine:
            assert machine.name != name
    await empty(driver)


async def test_a_sandbox_that_vanished_by_itself_is_not_taken_for_removed(tmp_path: Path) -> None:
    """Its chat is still written down: its journal and its budget stay."""
    driver = MemoryDriver(tmp_path)
    forgotten: list[Chat] = []
    async with Fleet(driver, ChatIndex(tmp_path / "chats"), trash_after=86400) as fleet:
        fleet.on_removed(forgotten.append)
        async with fleet.lease(CHAT) as machine:
            name = machine.name
        await MemoryDriver(tmp_path).delete(name)
        await fleet._expiry.sweep()
        assert forgotten == []
    await empty(driver)


@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_removal_is_told_once(tmp_path: Path, now: bool, stopped: bool) -> None:
    """Whether the lost connection or the look into the trash tells of it."""
    driver, beside = MemoryDriver(tmp_path), MemoryDriver(tmp_path)
    told: asyncio.Queue[LifecycleEvent] = asyncio.Queue()
    async with Fleet(driver, ChatIndex(tmp_path / "chats"), trash_after=86400) as fleet:
        fleet.lifecycle.listen(told.put)
        async with fleet.lease(CHAT) as machine:
            name = machine.name
        assert (await told.get()).what == "created"
        await fleet._expiry.sweep()
        if stopped:
            await beside.stop(name)
            assert (await told.get()).what == "stopped"
        await (beside.delete(name) if now else beside.discard(name, TrashNote(CHAT, "removed by hand", 0.0)))
        ChatIndex(tmp_path / "chats").remove(CHAT.digest)
        await machine.gone()
        await fleet._expiry.sweep()
        events = [await told.get()]
        async with fleet.lease(CHAT):  # starts another one, of which is told after all others
            while events[-1].what != "created":
                events.append(await told.get())
        gone = [event.what for event in events if event.what in ("removed", "deleted") and event.chat is not None]
        assert len(gone) == 1
    await empty(driver)


async def test_what_was_deleted_just_before_the_end_is_not_written_down_again(tmp_path: Path) -> None:
    """The service has not looked since: its clock and the numbers of its journals would name the chat for ever."""
    driver, clock = MemoryDriver(tmp_path), tmp_path / "clock.json"
    async with (
        Journal(removal.journal_folder(tmp_path)) as journal,
        Fleet(driver, ChatIndex(tmp_path / "chats"), journal=journal, clock_file=clock) as fleet,
    ):
        async with fleet.lease(CHAT) as machine:
            name = machine.name
        await fleet._expiry.save()
        assert CHAT.digest in clock.read_text() or name in clock.read_text()
        await MemoryDriver(tmp_path).delete(name)  # what `cubicle rm --now` does
        ChatIndex(tmp_path / "chats").remove(CHAT.digest)
        removal.remove_records(tmp_path, CHAT.digest)
        removal.remove_journal(tmp_path, CHAT.digest)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and CHAT.digest.encode() in path.read_bytes()]
    assert left == []
    assert name not in clock.read_text()
    await empty(driver)


async def test_a_call_that_comes_while_its_chat_is_claimed_stays_the_user_of_its_sandbox(tmp_path: Path) -> None:
    """With a second slot the chat would be connected twice, and its sandbox stopped as if nobody used it."""
    driver, index = MemoryDriver(tmp_path), tmp_path / "chats"
    async with Fleet(driver, ChatIndex(index)) as before, before.lease(CHAT) as machine:
        name = machine.name

    class Shared(Alone):
        async def claim(self, digests: Sequence[str]) -> Collection[str]:
            return ()

        async def claim_one(self, digest: str) -> bool:
            await calls.enter_async_context(fleet.lease(CHAT))
            return True

    async with Fleet(driver, ChatIndex(index), sharing=Shared()) as fleet, AsyncExitStack() as calls:
        await fleet._expiry._removals.follow_trash(())
        slot = fleet._slots[CHAT.digest]
        assert (slot.name, slot.leases) == (name, 1)
        assert slot.live is not None
    await empty(driver)


async def test_a_journal_stays_when_another_process_has_the_chat_as_its_last_sandbox_is_deleted(tmp_path: Path) -> None:
    """A call there may be on its way to a new sandbox, with its entry in the journal already."""
    driver, index = MemoryDriver(tmp_path), tmp_path / "chats"
    asked: list[str] = []

    class Shared(Alone):
        async def claim_one(self, digest: str) -> bool:
            asked.append(digest)
            return has_it

    for has_it in (False, True):
        events: list[LifecycleEvent] = []
        async with Fleet(driver, ChatIndex(index), sharing=Shared(), trash_after=1, pool_size=0) as fleet:
            fleet.lifecycle.listen(events.append)
            async with fleet.lease(CHAT) as machine:
                name = machine.name
            await fleet.remove(CHAT)
            (each,) = await driver.discarded()
            await fleet._expiry._purge(each, [each])
        assert [event.what for event in events].count("deleted") == has_it
        assert name not in await driver.names()
    assert set(asked) == {CHAT.digest}
    await empty(driver)
