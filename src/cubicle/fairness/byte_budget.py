"""Bytes that the service holds of messages that are not whole, or that nobody reads: so many for a chat, so many for a
tenant. What a connection holds up to 64 KB is not counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cubicle.core.chat import Chat

UNCOUNTED = 64 * 1024
MAX_FRAME = 16 * 1024**2
"""A frame of a WebSocket is held until it is whole, and no longer one is taken (1009). Messages go on by the frame."""
OVER_BUDGET = "The chat has too many long messages under way."


@dataclass(slots=True)
class ByteBudget:
    """One for all connections of a kind."""

    of_chat: int
    of_tenant: int
    _chats: Counter[str] = field(default_factory=Counter)
    _tenants: Counter[str] = field(default_factory=Counter)

    def open(self, chat: Chat) -> ByteAccount:
        """For one end of a connection; whoever has it closes it."""
        return ByteAccount(self, chat)

    @contextmanager
    def account(self, chat: Chat) -> Iterator[ByteAccount]:
        """The same, for as long as the block lasts."""
        account = self.open(chat)
        try:
            yield account
        finally:
            account.close()

    def book(self, chat: Chat, change: int) -> bool:
        """Whether chat and tenant are within their budgets now."""
        self._chats[chat.digest] += change
        self._tenants[chat.tenant] += change
        fits = self._chats[chat.digest] <= self.of_chat and self._tenants[chat.tenant] <= self.of_tenant
        for counter, name in ((self._chats, chat.digest), (self._tenants, chat.tenant)):
            if not counter[name]:
                del counter[name]
        return fits


class ByteAccount:
    """What one end of a connection holds just now."""

    def __init__(self, budget: ByteBudget, chat: Chat) -> None:
        self._budget = budget
        self._chat = chat
        self._booked = 0
        self._closed = False

    def hold(self, size: int) -> bool:
        """It holds so many bytes now; False when that is more than there is for it."""
        counted = 0 if self._closed else max(0, size - UNCOUNTED)
        if counted == self._booked:
            return True
        change, self._booked = counted - self._booked, counted
        return self._budget.book(self._chat, change) or change < 0

    def close(self) -> None:
        """Nothing is held any more."""
        self.hold(0)
        self._closed = True
