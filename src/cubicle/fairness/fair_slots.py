"""A number of slots for work that takes its time (starts, listings, archives, uploads), shared fairly.

Busy    the chat has as much of this work under way as it may; try again
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cubicle.core.chat import Chat


class Busy(Exception):
    """The chat has as much of this under way as it may."""


@dataclass(slots=True)
class FairSlots:
    """At most `total` at once, `of_tenant` of them one tenant's. A slot goes to the tenant that has the fewest, and
    there to the chat whose turn it is. A chat that has `of_chat` under way or waiting is refused."""

    total: int
    of_tenant: int
    of_chat: int
    _held: Counter[str] = field(default_factory=Counter)
    _under_way: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = field(default_factory=dict)

    @asynccontextmanager
    async def hold(self, chat: Chat, *, wait: bool = True) -> AsyncIterator[None]:
        """Wait for a slot, and have it for the block. Raises Busy; without `wait` also when none is free."""
        if self._under_way[chat.digest] >= self.of_chat or not (wait or self._has_room(chat.tenant)):
            raise Busy("Too many requests of this kind are under way. Try again when they are done.")
        self._under_way[chat.digest] += 1
        try:
            await self._acquire(chat)
            try:
                yield
            finally:
                self._release(chat.tenant)
        finally:
            _lower(self._under_way, chat.digest)

    async def _acquire(self, chat: Chat) -> None:
        if self._has_room(chat.tenant) and chat.tenant not in self._waiting:
            self._held[chat.tenant] += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(chat.tenant, {}).setdefault(chat.digest, deque()).append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self._release(chat.tenant)
            raise

    def _has_room(self, tenant: str) -> bool:
        return self._held.total() < self.total and self._held[tenant] < self.of_tenant

    def _release(self, tenant: str) -> None:
        _lower(self._held, tenant)
        while ready := [name for name in self._waiting if self._has_room(name)]:
            name = min(ready, key=lambda each: self._held[each])
            chats = self._waiting[name]
            digest, waiters = next(iter(chats.items()))
            waiter = waiters.popleft()
            del chats[digest]
            if waiters:
                chats[digest] = waiters  # behind the others
            if not chats:
                del self._waiting[name]
            if not waiter.done():
                self._held[name] += 1
                waiter.set_result(None)


def _lower(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
