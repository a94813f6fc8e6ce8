"""What the egress proxy did for one chat since it last said so, for metrics and quotas of the whole service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Self

from cubicle.core.chat import Chat

_MAX_NUMBER = 2**53


@dataclass(slots=True)
class EgressTally:
    """Decisions about connections, and bytes."""

    allowed: int = 0
    denied: int = 0
    failed: int = 0
    sent: int = 0
    received: int = 0

    @property
    def is_empty(self) -> bool:
        return not any(astuple(self))


@dataclass(frozen=True, slots=True)
class EgressReport:
    """The tally of one chat, as the control channel carries it."""

    chat: Chat
    tally: EgressTally

    def packed(self) -> list[Any]:
        return [self.chat.id, self.chat.tenant, *astuple(self.tally)]

    @classmethod
    def parse(cls, packed: Sequence[Any]) -> Self:
        """Raises ValueError, TypeError for anything else."""
        chat, tenant, *numbers = packed
        if len(numbers) != len(fields(EgressTally)):
            raise ValueError("a report of another form")
        return cls(Chat(str(chat), str(tenant)), EgressTally(*(min(max(0, int(n)), _MAX_NUMBER) for n in numbers)))
