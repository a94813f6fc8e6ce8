"""Several processes over the sandboxes of one driver: which of them has which chat."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from cubicle.sandbox.slot import Overview
from cubicle.sandbox.warm_pool import Part


class Sharing(Protocol):
    """As one of the processes sees it."""

    @property
    def part(self) -> Part:
        """Whose blank sandboxes are this one's."""

    async def claim(self, digests: Sequence[str]) -> Collection[str]:
        """Of the chats that have a sandbox when this one starts, those that are this one's."""

    async def claim_one(self, digest: str) -> bool:
        """Have a chat that nobody has; whether this one has it."""

    def require(self, digest: str) -> None:
        """Raises SandboxError if this one does not have the chat: it may have left it to another while a request for it
        was on its way."""

    def elsewhere(self) -> Iterable[Overview]:
        """The sandboxes of the others, as they were last seen."""


class Alone:
    """There is one process, which has everything."""

    part = Part()

    async def claim(self, digests: Sequence[str]) -> Collection[str]:
        return frozenset(digests)

    async def claim_one(self, digest: str) -> bool:
        return True

    def require(self, digest: str) -> None:
        pass

    def elsewhere(self) -> Iterable[Overview]:
        return ()
