"""What a link of a chat opens: all of it, its replay, or one file. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cubicle.core import paths

MAX_SCOPE = 4200


class BadScope(ValueError):
    """The text names nothing that a link can open."""


class Opens(StrEnum):
    CHAT = "chat"
    REPLAY = "replay"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class LinkScope:
    """`path` is that of the file."""

    opens: Opens = Opens.CHAT
    path: str = ""

    @classmethod
    def of(cls, opens: str, path: str = "") -> LinkScope:
        """Raises BadScope."""
        if opens not in list(Opens):
            raise BadScope("A link opens chat, replay or file.")
        kind = Opens(opens)
        if (kind is Opens.FILE) != bool(path) or len(path) > MAX_SCOPE:
            raise BadScope("A link to a file names its path, and no other link does.")
        if path:
            try:
                paths.relative(path)
            except paths.BadPath as error:
                raise BadScope(str(error)) from None
            if path.endswith("/"):
                raise BadScope("This is a folder, not a file.")
        return cls(kind, path)

    @property
    def is_whole(self) -> bool:
        """Whether it opens all of the chat."""
        return self.opens is Opens.CHAT


WHOLE = LinkScope()
NOTHING = LinkScope(Opens.FILE, "\0")
"""No file has this path."""
