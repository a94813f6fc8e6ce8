"""A removed sandbox that can still be brought back: what is written down of it, the same for every driver."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Self

from cubicle.core.chat import BadChatId, Chat

_VERSION = 1


@dataclass(frozen=True, slots=True)
class TrashNote:
    """Whose sandbox it was, and why and when it was removed."""

    chat: Chat | None
    """None where the service did not know whose it was."""
    reason: str
    at: float
    """The date of the removal, for people: the time in the trash is not counted by it."""
    size: int | None = None
    """Bytes on disk, if the driver knows."""

    def to_json(self) -> bytes:
        fields = asdict(self) | {"version": _VERSION, "chat": None, "tenant": None}
        if self.chat is not None:
            fields |= {"chat": self.chat.id, "tenant": self.chat.tenant}
        return json.dumps(fields).encode()

    @classmethod
    def parse(cls, content: bytes) -> Self | None:
        """None if it is not a note."""
        try:
            fields = json.loads(content)
            chat = None if fields["chat"] is None else Chat(str(fields["chat"]), str(fields["tenant"]))
            at, size = float(fields["at"]), fields.get("size")
            if not math.isfinite(at):
                return None
            return cls(chat, str(fields["reason"]), at, size if isinstance(size, int) else None)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, BadChatId):
            return None


@dataclass(frozen=True, slots=True)
class Discarded:
    """One sandbox in the trash."""

    name: str
    owner: str | None
    """The digest of the chat that it belonged to."""
    note: TrashNote | None
    """None if it cannot be read: such a sandbox is never deleted for its age."""
    image: str = ""
