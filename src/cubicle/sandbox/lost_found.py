"""What could not be used and may be somebody's: set aside in DATA_DIR/lost+found, never deleted.

DATA_DIR/lost+found/<name>-<time>/   a sandbox's folder as it was, or the one thing that was set aside
                     note.json      why, when, what it was, and whose, as far as that is known

`cubicle rescue` lists it and gives a sandbox back to a chat. Where DATA_DIR is a file system of its own, e2fsck uses
the folder too: entries without the form of ours are left alone.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from cubicle import durable, record
from cubicle.core.chat import BadChatId, Chat
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

FOLDER = "lost+found"
NOTE = "note.json"
_ENTRY = re.compile(r"(.{1,200})-\d{8}T\d{6}Z(-[0-9a-f]{4,16})?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lost:
    """One thing that was set aside."""

    path: Path
    was: str
    """The path that it had, beneath DATA_DIR."""
    why: str
    at: float | None
    """When it was set aside (seconds of the epoch); None if that was not written down."""
    owner: str | None
    chat: Chat | None
    """Whose it was, as far as that is known."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_sandbox(self) -> bool:
        """Whether it holds the disk of a sandbox, which can be given back to a chat."""
        return (self.path / "disk.img").is_file() or (self.path / "tree").is_dir()


class LostFound:
    """The folder of one DATA_DIR. Blocking."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.folder = data_dir / FOLDER

    def set_aside(self, path: Path, why: str, owner: str | None = None) -> Path | None:
        """Move a file or folder here, and say so in the log; None, and it stays, if the host refuses the move."""
        try:
            place = self._move(path)
        except OSError as error:
            log.error("%s (%s) cannot be set aside: %s", path, why, error.strerror)
            return None
        was = os.path.relpath(path, self._data_dir)
        log.warning("%s was set aside in %s: %s", was, place, why, extra={"owner": owner or ""})
        fields: dict[str, object] = {"was": was, "why": why, "at": time.time(), "owner": owner}
        if owner is not None and (chat := self._chat_of(owner)) is not None:
            fields |= {"tenant": chat.tenant, "chat": chat.id}
        try:
            record.write(place / NOTE, fields)
        except OSError as error:
            log.warning("the note on %s could not be written: %s", place, error.strerror)
        return place

    def entries(self) -> list[Lost]:
        """All that was set aside, oldest first; what is not ours to tell of is left out."""
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return []
        found = [self._entry(self.folder / name, match[1]) for name in names if (match := _ENTRY.fullmatch(name))]
        return sorted(found, key=lambda lost: (lost.at or 0, lost.name))

    def _move(self, path: Path) -> Path:
        record.make_folder(self.folder)
        name = f"{path.name[:100]}-{record.stamp()}"
        place = self.folder / (name if not os.path.lexists(self.folder / name) else f"{name}-{secrets.token_hex(8)}")
        if path.is_dir() and not path.is_symlink():
            durable.move(path, place)
        else:
            durable.make_folder(place)
            durable.move(path, place / path.name)
        return place

    def _chat_of(self, owner: str) -> Chat | None:
        """The chat behind a digest, by what the service has written down of it."""
        try:
            fields = record.read(self._data_dir / "chats" / owner)
            chat = Chat(fields.text("chat"), fields.text("tenant"))
        except (OSError, BadRecord, BadChatId):
            return None
        return chat if chat.digest == owner else None

    def _entry(self, path: Path, name: str) -> Lost:
        try:
            note = record.read(path / NOTE)
            owner = note.text("owner") if note.values.get("owner") is not None else None
            chat = Chat(note.text("chat"), note.text("tenant")) if "chat" in note.values else None
            return Lost(path, note.text("was"), note.text("why"), note.number("at"), owner, chat)
        except (OSError, BadRecord, BadChatId):
            return Lost(path, name, "there is no note on it", None, None, None)
