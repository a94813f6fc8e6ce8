"""The records by which members find each other, and find out who owns a chat.

NoRecords    the records cannot be read or written at present
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class NoRecords(Exception):
    """Nobody can say who owns the chat, or nobody can take it. Its text says why, for the operator."""

    def __init__(self, said: str, why: str = "") -> None:
        super().__init__(f"{said} {why}".strip())
        self.said = said
        """What clients are told: the addresses and accounts of a cluster are none of their business."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns a chat."""

    holder: str
    """The name of a member. One that starts again has another name."""
    epoch: int
    """Grows each time that the chat changes hands."""


class MemberRecords(Protocol):
    """Shared by all members. Everything may raise NoRecords."""

    name: str
    """Of this member."""

    lapsed: bool
    """Whether others may have taken it for dead since this was last set to False."""

    async def open(self) -> socket.socket:
        """Be a member; where other members reach this one."""

    async def close(self) -> None:
        """Be one no more: what it still owns can be taken by others."""

    async def owner(self, digest: str) -> Ownership | None:
        """The owner of a chat, dead or alive."""

    async def take(self, digest: str, seen: Ownership | None) -> Ownership:
        """Own the chat, if its owner is still who was seen; the owner from now on, which may be another."""

    async def release(self, epochs: Mapping[str, int]) -> None:
        """Own these no more: whoever is asked for one next takes it. One that changed hands since is left alone."""

    async def owned_by(self, holder: str) -> Sequence[str]:
        """The chats of a member, dead or alive."""

    async def is_alive(self, holder: str) -> bool:
        """Whether a member still runs. Of one that does not, nothing is ever heard again."""

    async def living(self) -> Sequence[str]:
        """All members that run, this one included, in the same order for all who ask."""

    async def dead(self) -> Sequence[str]:
        """Members that ended, and were not buried."""

    async def bury(self, holder: str) -> None:
        """Forget a dead member that owns nothing any more."""

    async def dial(self, holder: str) -> socket.socket:
        """A connection to a member, non-blocking. Raises OSError."""
