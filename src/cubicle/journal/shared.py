"""The journals of the chats that one of several processes has: each journal has one writer at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from cubicle import durable
from cubicle.journal import anchor
from cubicle.journal.anchor import DIGEST
from cubicle.journal.journal import Journal
from cubicle.journal.startup import read_head
from cubicle.record import BadRecord, make_folder

log = logging.getLogger(__name__)

_LOCK = ".numbers.lock"


class SharedJournal(Journal):
    """It knows nothing of a chat before `take`. The record of the last numbers is shared, and changed under a lock."""

    _known: Mapping[bytes, int]

    def _read_numbers(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """Nothing is this process's yet, and another may be writing."""
        make_folder(self._folder)
        self._known = anchor.peek(self._folder)
        return {}, {}

    def _write_numbers(self, numbers: Mapping[bytes, int]) -> None:
        gone = self._saved.keys() - numbers.keys()
        with durable.locked(self._folder / _LOCK):
            others = {key: number for key, number in anchor.read(self._folder).items() if key not in gone}
            anchor.save(self._folder, {**others, **numbers})

    async def take(self, digest: str) -> None:
        """The chat's journal is this process's from now on, as the one before left it."""
        key = bytes.fromhex(digest)
        if self._closed or digest in self._heads or key in self._numbers or not DIGEST.fullmatch(digest):
            return
        try:
            number = await asyncio.to_thread(self._read_head, digest)
        except (OSError, BadRecord) as error:
            log.error("a journal cannot be used: %s", error, extra={"folder": digest})
            return
        if number and digest not in self._heads:
            self._numbers[key] = self._before[key] = number
        if (known := self._known.get(key, 0)) > number:
            self._note_missing(digest, known)

    def _read_head(self, digest: str) -> int:
        path = self._folder / digest
        return read_head(path, self._limit) if path.exists() else 0

    async def give(self, digest: str) -> None:
        """Leave the journal to another process: everything is on disk, and nothing of it is held open."""
        head = self._heads.get(digest)
        if head is not None and not self._closed:
            self._release(head)
            await self._flush(head, sync=True)
        self._heads.pop(digest, None)
        for numbers in (self._numbers, self._before):
            numbers.pop(bytes.fromhex(digest), None)
        self._identities.forget(digest)
