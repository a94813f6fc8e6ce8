"""Which names a member of an archive may have, and what they mean. Pure.

BadArchive    the file is no archive of ours, is damaged, or holds what it must not
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "cubicle.json"
SUMS = "SHA256SUMS"
CHAT = "chat.json"
JOURNAL = "journal"
LEFT_OUT = "left-out.txt"
HOME, OUTPUTS, UPLOADS = "home", "outputs", "uploads"
AREAS = (HOME, OUTPUTS, UPLOADS)
"""The folders of a sandbox that are kept."""
_DATA, _CHATS = "data", "chats"
_MAX_NAME = 4096
_MAX_DEPTH = 256
_DIGEST = re.compile(r"[0-9a-f]{32}\Z")
_JOURNAL_FILE = re.compile(r"[0-9]{6,12}(\.jsonl|-[0-9a-f]{64}\.blob)\Z")


class BadArchive(Exception):
    """The file is no archive of ours, is damaged, or holds what it must not; the message says which."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a member is."""

    chat: str = ""
    """The digest of the chat that it belongs to; empty for what belongs to the service."""
    area: str = ""
    """The header, the checksums, a file of DATA_DIR (`data`), or what it is of a chat."""
    path: str = ""
    """Below the area, for what has a name of its own."""


def data_name(path: str) -> str:
    return f"{_DATA}/{path}"


def chat_name(digest: str, area: str, path: str = "") -> str:
    return f"{_CHATS}/{digest}/{area}" + (f"/{path}" if path else "")


def is_journal_file(name: str) -> bool:
    """Whether a file of a journal's folder is a part of it, and not something that was set aside."""
    return _JOURNAL_FILE.match(name) is not None


def place_of(name: str) -> Place:
    """What a member of this name is. Raises BadArchive."""
    name = name.rstrip("/")
    parts = name.split("/")
    if len(name) > _MAX_NAME or len(parts) > _MAX_DEPTH:
        raise BadArchive("It holds a name that is too long.")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BadArchive(f"It holds a name that leads out of its place: {name[:200]!r}.")
    match parts:
        case ["cubicle.json"] | ["SHA256SUMS"]:
            return Place(area=name)
        case ["data", _, *_]:
            return Place(area=_DATA, path="/".join(parts[1:]))
        case ["chats", digest, "chat.json" | "left-out.txt" as area] if _DIGEST.match(digest):
            return Place(digest, area)
        case ["chats", digest, "journal", file] if _DIGEST.match(digest) and is_journal_file(file):
            return Place(digest, JOURNAL, file)
        case ["chats", digest, area, *rest] if _DIGEST.match(digest) and area in AREAS:
            return Place(digest, area, "/".join(rest))
    raise BadArchive(f"It holds something that does not belong there: {name[:200]!r}.")
