"""What the command line did beside the service: sandboxes that it removed, deleted or restored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from cubicle.sandbox.chat_index import ChatIndex, ChatRecord
from cubicle.sandbox.driver import Driver, SandboxSeen
from cubicle.sandbox.lifecycle import BY_HAND, Lifecycle
from cubicle.sandbox.slot import Slot


class Removals:
    """Follows it, and has everything forgotten that was kept in memory of a chat: it would be written to disk again."""

    def __init__(
        self,
        driver: Driver,
        index: ChatIndex,
        slots: dict[str, Slot],
        lifecycle: Lifecycle,
        slot_of: Callable[[SandboxSeen, ChatRecord | None], Slot],
        claim: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._driver = driver
        self._index = index
        self._slots = slots
        self._lifecycle = lifecycle
        self._slot_of = slot_of
        self._claim = claim

    async def follow_trash(self, in_trash: Collection[str]) -> None:
        """Forget what was removed, and take in what was restored."""
        for slot in [slot for slot in self._slots.values() if slot.name in in_trash]:
            async with slot.lock:
                if slot.name in in_trash and not slot.leases:
                    await self._forget(slot, gone=False)
        records = await asyncio.to_thread(self._index.read)
        for found in await self._driver.list():
            if found.owner in records and found.owner not in self._slots and await self._claim(found.owner):
                slot = self._slot_of(found, records[found.owner])
                self._slots.setdefault(found.owner, slot)  # while it was claimed, a call may have come

    async def follow_deleted(self) -> set[str]:
        """Forget what was deleted for good: the driver does not know it, and nothing is written down of its chat. The
        keys of what is forgotten."""
        named = [slot for slot in self._slots.values() if slot.name and not slot.leases]
        there = set(await self._driver.names()) if named else set()
        forgotten: set[str] = set()
        for slot in [slot for slot in named if slot.name not in there]:
            async with slot.lock:
                if slot.name and not slot.leases and await self._is_deleted(slot):
                    await self._forget(slot, gone=True)
                    forgotten.add(slot.key)
        return forgotten

    async def has_nothing(self, digest: str) -> bool:
        """Whether a chat has no sandbox, and no other process has the chat: a call that is about to make one there has
        its entry in the journal already. From then on this process has it."""
        return await self._claim(digest) and await self._driver.find(digest) is None

    async def follow_given(self, slot: Slot) -> bool:
        """Forget one that is another chat's now: it was removed and restored, or imported, between two looks. Whether
        that was so. The slot is locked."""
        found = await self._driver.find(slot.digest, slot.name)
        if found == slot.name:
            return False
        if found is None and not any(seen.name == slot.name for seen in await self._driver.list()):
            return False  # it is nobody's
        if not slot.leases:
            await self._forget(slot, gone=False)
        return True

    async def _is_deleted(self, slot: Slot) -> bool:
        if await self._driver.find(slot.digest, slot.name) is not None:
            return False
        if any(each.owner == slot.digest for each in await self._driver.discarded()):
            return False
        return not await asyncio.to_thread(self._index.has, slot.digest)

    async def _forget(self, slot: Slot, *, gone: bool) -> None:
        machine = slot.machine
        slot.hang_up()
        self._slots.pop(slot.digest, None)
        await self._lifecycle.tell_removed(slot.chat, slot.name, BY_HAND, gone=gone, machine=machine)
