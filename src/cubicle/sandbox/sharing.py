"""Several processes over the sandboxes of one driver: which of them has which chat."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextvars import ContextVar
from typing import Protocol

from cubicle.machine.errors import SandboxError
from cubicle.sandbox.slot import Overview
from cubicle.sandbox.warm_pool import Part


class LeftToAnother(SandboxError):
    """This process does not have the chat any more: another try finds the one that has it.

    Whoever answers the request hears of it, whatever became of the error on its way.
    """

    def __init__(self) -> None:
        super().__init__("This chat has just gone to another process of the service. Try again.")
        heard = _heard.get()
        if heard is not None:
            heard[:] = [str(self)]  # in words: the error itself would keep all that its traceback names


_heard: ContextVar[list[str] | None] = ContextVar("left to another", default=None)


def hear_of_left() -> list[str]:
    """What the last one says that is raised from now on in this task, or in tasks that it starts; empty until then."""
    heard: list[str] = []
    _heard.set(heard)
    return heard


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
        """Raises LeftToAnother if this one has not got the chat: it may have left it while a request was on its way."""

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
