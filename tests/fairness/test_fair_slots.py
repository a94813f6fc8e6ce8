"""Slots: a tenant that wants all of them leaves some."""

from __future__ import annotations

import asyncio

import pytest

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import Busy, FairSlots

pytestmark = pytest.mark.anyio


class Work:
    """Tasks that hold a slot until they are let go."""

    def __init__(self, slots: FairSlots) -> None:
        self._slots = slots
        self.running: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.go = asyncio.Event()

    def start(self, chat: Chat) -> asyncio.Task[None]:
        async def hold() -> None:
            async with self._slots.hold(chat):
                self.running.append(chat.id)
                await self.go.wait()

        self.tasks.append(asyncio.create_task(hold()))
        return self.tasks[-1]

    async def finish(self) -> None:
        self.go.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_tenant_never_has_them_all() -> None:
    work = Work(FairSlots(total=4, of_tenant=3, of_chat=100))
    for _ in range(50):
        work.start(Chat("many", "flood"))
    await settle()
    assert len(work.running) == 3
    work.start(Chat("other", "other"))
    await settle()
    assert work.running[-1] == "other"
    await work.finish()
    assert len(work.running) == 51


async def test_a_free_slot_goes_to_who_has_the_fewest_and_chats_take_turns() -> None:
    work = Work(FairSlots(total=2, of_tenant=2, of_chat=100))
    first = [work.start(Chat("a", "one")) for _ in range(2)]
    await settle()
    for chat in (Chat("a", "one"), Chat("a", "one"), Chat("b", "one"), Chat("c", "two")):
        work.start(chat)
    await settle()
    for task in first:
        task.cancel()
        await settle()
    assert work.running == ["a", "a", "c", "a"]
    await work.finish()
    assert work.running == ["a", "a", "c", "a", "b", "a"]


async def test_a_chat_with_too_many_is_refused() -> None:
    work = Work(FairSlots(total=1, of_tenant=1, of_chat=2))
    for _ in range(2):
        work.start(Chat("a"))
    await settle()
    refused = work.start(Chat("a"))
    with pytest.raises(Busy):
        await refused
    await work.finish()


async def test_who_gives_up_takes_none_with_him() -> None:
    slots = FairSlots(total=1, of_tenant=1, of_chat=10)
    work = Work(slots)
    work.start(Chat("a"))
    await settle()
    leaves = work.start(Chat("a"))
    await settle()
    leaves.cancel()
    await work.finish()
    async with asyncio.timeout(10), slots.hold(Chat("a")):
        pass
