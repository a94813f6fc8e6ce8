"""Who owns which digest, since when, and when they last used it: the facts that no driver keeps."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubicle.rules.chats import BadChatId, Chat


@dataclass(frozen=True, slots=True)
class Record:
    chat: Chat
    last_used: float
    since: float | None
    """When the chat's first call came; None where that was not written down."""


class Ledger:
    """One small file per chat; its time stamp is the time of the last use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def enter(self, chat: Chat) -> float | None:
        """Write the chat down, if it is not there, and note the use; since when it is there, if that is known."""
        path = self._folder / chat.digest
        if path.exists():
            self.touch(chat.digest)
            with suppress(OSError, ValueError):
                return _since(json.loads(path.read_text()))
            return None
        fresh = self._folder / f".{chat.digest}.{os.getpid()}"
        since = time.time()
        fresh.write_text(json.dumps({"tenant": chat.tenant, "chat": chat.id, "since": since}))
        fresh.rename(path)
        return since

    def touch(self, digest: str) -> None:
        with suppress(OSError):  # not to have noted a use is no reason to refuse it
            os.utime(self._folder / digest)

    def remove(self, digest: str) -> None:
        (self._folder / digest).unlink(missing_ok=True)

    def read(self) -> dict[str, Record]:
        """Everything that is written down; what cannot be read is as if it were not there."""
        found: dict[str, Record] = {}
        for path in self._folder.iterdir():
            try:
                fields = json.loads(path.read_text())
                chat = Chat(fields["chat"], fields["tenant"])
                if chat.digest == path.name:
                    found[path.name] = Record(chat, path.stat().st_mtime, _since(fields))
            except (OSError, ValueError, KeyError, TypeError, BadChatId):
                continue
        return found


def _since(fields: Any) -> float | None:
    since = fields.get("since") if isinstance(fields, dict) else None
    return float(since) if isinstance(since, int | float) else None
