"""The journals of the chats that one of several processes has: each journal has one writer at a time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from cubicle import durable
from cubicle.core.chat import Chat
from cubicle.journal import anchor
from cubicle.journal.anchor import DIGEST
from cubicle.journal.journal import Journal
from cubicle.journal.startup import JournalNumbers, read_head
from cubicle.journal.writer import Release
from cubicle.record import BadRecord, make_folder

log = logging.getLogger(__name__)

_LOCK = ".numbers.lock"


class SharedNumbers(JournalNumbers):
    """The record of the last numbers that several processes change, under a lock."""

    def read(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """No chat is this process's yet, and another may be writing its journal."""
        make_folder(self._folder)
        return {}, {}

    def _write(self, numbers: Mapping[bytes, int]) -> None:
        """What another process has by now stays as that one saved it."""
        forgotten = set(self.forgotten)
        gone = forgotten - numbers.keys()
        try:
            with durable.locked(self._folder / _LOCK):
                others = {key: number for key, number in anchor.read(self._folder).items() if key not in gone}
                anchor.save(self._folder, {**others, **numbers})
        except TimeoutError as error:
            raise OSError(0, str(error)) from None
        self.forgotten -= forgotten

    def read_one(self, digest: str) -> tuple[int, int]:
        """The last number of one chat, and the one that it is known to have reached. Raises OSError, BadRecord."""
        path = self._folder / digest
        number = read_head(path, self._limit) if path.exists() else 0
        return number, anchor.peek(self._folder).get(bytes.fromhex(digest), 0)


class SharedJournal(Journal):
    """It knows nothing of a chat before `take`."""

    def __init__(self, folder: Path, *, limit: int = 2 << 20, max_age: float = 30 * 86400) -> None:
        super().__init__(folder, limit=limit, max_age=max_age)
        self._shared_numbers = self._anchor = SharedNumbers(folder, limit)
        self._taken: set[str] = set()
        """Whose journals are this process's."""

    def record(self, chat: Chat, kind: str, fields: Mapping[str, object], *, hold: bool = False) -> int:
        """What comes when the chat is another's, the end of a call say, is not kept: that one writes the journal."""
        return super().record(chat, kind, fields, hold=hold) if chat.digest in self._taken else 0

    def keep_blob(self, chat: Chat, data: bytes) -> str:
        return super().keep_blob(chat, data) if chat.digest in self._taken else hashlib.sha256(data).hexdigest()

    async def take(self, digest: str) -> None:
        """The chat's journal is this process's from now on, as the one before left it."""
        if self._closed or not DIGEST.fullmatch(digest):
            return
        key = bytes.fromhex(digest)
        if digest not in self._heads and key not in self._numbers:
            await self._read(digest, key)
        self._taken.add(digest)

    async def _read(self, digest: str, key: bytes) -> None:
        try:
            number, known = await asyncio.to_thread(self._shared_numbers.read_one, digest)
        except (OSError, BadRecord) as error:
            log.error("a journal cannot be used: %s", error, extra={"folder": digest})
            return
        if number and digest not in self._heads:
            self._numbers[key] = self._before[key] = number
        if known > number:
            self._note_missing(digest, known)

    def forget_digest(self, digest: str) -> None:
        """Also that of a chat which this process does not have: nobody has one whose last sandbox was deleted from the
        trash."""
        key = bytes.fromhex(digest)
        if not self._closed and DIGEST.fullmatch(digest):
            self._shared_numbers.forgotten.add(key)
            if digest not in self._heads and key not in self._numbers:
                self._use(digest)
        super().forget_digest(digest)

    async def give(self, digest: str) -> None:
        """Leave the journal to another process: everything is on disk, and nothing of it is held open."""
        self._taken.discard(digest)
        head = self._heads.get(digest)
        if head is not None and not self._closed:
            self._queue(head, Release(), 0)
            head.released = True
            await self._flush(head, sync=True)
        self._heads.pop(digest, None)
        for numbers in (self._numbers, self._before):
            numbers.pop(bytes.fromhex(digest), None)
        self._identities.forget(digest)
