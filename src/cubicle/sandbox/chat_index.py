"""Who owns which digest, since when, and when they last used it: the facts that no driver keeps."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cubicle import record
from cubicle.core.chat import BadChatId, Chat
from cubicle.record import BadRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatRecord:
    chat: Chat
    last_used: float
    since: float | None
    """When the chat's first call came; None where that was not written down."""


class ChatIndex:
    """One small file per chat; its time stamp is the time of the last use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        record.make_root(self._folder)

    def enter(self, chat: Chat) -> float | None:
        """Write the chat down, if it is not there, and note the use; since when it is there, if that is known."""
        path = self._folder / chat.digest
        since: float | None = time.time()
        try:
            known = _read(path)
            if known.chat == chat:
                self.touch(chat.digest)
                return known.since
        except FileNotFoundError:
            pass
        except (OSError, BadRecord, BadChatId) as error:
            log.warning("what was written down of a chat cannot be used: %s", error, extra={"chat": chat.id})
            since = None
        record.write(path, {"tenant": chat.tenant, "chat": chat.id, "since": since})
        return since

    def touch(self, digest: str) -> None:
        with suppress(OSError):  # not to have noted a use is no reason to refuse it
            os.utime(self._folder / digest)

    def has(self, digest: str) -> bool:
        """Whether anything is written down of a chat."""
        return os.path.lexists(self._folder / digest)

    def chat_of(self, digest: str) -> Chat | None:
        """Whose digest it is, if that can be read."""
        with suppress(OSError, BadRecord, BadChatId):
            known = _read(self._folder / digest)
            return known.chat if known.chat.digest == digest else None
        return None

    def remove(self, digest: str) -> None:
        try:
            record.remove(self._folder / digest)
        except OSError as error:
            log.warning("what was written down of a chat cannot be removed: %s", error.strerror)

    def read(self) -> dict[str, ChatRecord]:
        """Everything that is written down; what cannot be read is as if it were not there."""
        found: dict[str, ChatRecord] = {}
        for path in self._folder.iterdir():
            with suppress(OSError, BadRecord, BadChatId):
                known = _read(path)
                if known.chat.digest == path.name:
                    found[path.name] = known
        return found


def _read(path: Path) -> ChatRecord:
    fields = record.read(path)
    chat = Chat(fields.text("chat"), fields.text("tenant"))
    since = None
    with suppress(BadRecord):
        since = fields.number("since")
    return ChatRecord(chat, path.stat().st_mtime, since)
