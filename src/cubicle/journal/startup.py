"""How far each journal had come when the service starts."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from cubicle import record
from cubicle.journal import anchor, reading
from cubicle.journal.chat_files import ChatFiles
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

IMPORTED = ".imported"
"""A file in the folder of a journal that came from another service: one that runs does not know it yet."""


class JournalNumbers:
    """Where the last numbers of all journals are kept."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self.forgotten: set[bytes] = set()
        """Chats that are gone for good, and of which another process may have saved the number."""
        self._wrote: frozenset[bytes] = frozenset()

    def read(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """As `read_numbers`. Blocks."""
        return read_numbers(self._folder, self._limit)

    def save(self, numbers: Mapping[bytes, int]) -> set[bytes]:
        """Those of them that are not saved, because the command line deleted the chat from the trash: its files, and
        its number in the record. Blocks. Raises OSError."""
        there = anchor.peek(self._folder) if self._wrote else {}
        gone = {key for key in self._wrote & (numbers.keys() - there.keys()) if not (self._folder / key.hex()).exists()}
        self._write({key: number for key, number in numbers.items() if key not in gone})
        self._wrote = frozenset(numbers.keys() - gone)
        return gone

    def _write(self, numbers: Mapping[bytes, int]) -> None:
        anchor.save(self._folder, numbers)


def read_numbers(folder: Path, limit: int) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """The last number of each chat, and those that are known to have been higher. Blocks.

    Where the last number cannot be told, the journal is repaired.
    """
    numbers = {}
    record.make_root(folder)
    for path in folder.iterdir():
        if not anchor.DIGEST.fullmatch(path.name):
            continue
        try:
            numbers[bytes.fromhex(path.name)] = read_head(path, limit)
        except (OSError, BadRecord) as error:
            log.error("a journal cannot be used: %s", error, extra={"folder": path.name})
    known = anchor.read(folder)
    return numbers, {key: number for key, number in known.items() if number > numbers.get(key, 0)}


def imported_number(folder: Path, digest: str) -> int:
    """The last number of a journal that was put there while the service ran; 0 for others. Blocks for an instant."""
    if not (folder / digest / IMPORTED).exists():
        return 0
    with contextlib.suppress(OSError, BadRecord, IndexError):
        last = reading.last_line(reading.segments(folder / digest)[-1][1])
        return last.number if last is not None else 0
    return 0


def read_head(folder: Path, limit: int) -> int:
    """The last number of one chat. Where it cannot be told, the journal is repaired. Blocks."""
    with contextlib.suppress(OSError):
        known = reading.segments(folder)
        last = reading.last_line(known[-1][1]) if known else None
        if last is not None:
            return last.number
    files = ChatFiles(folder, limit)
    files.open()
    files.close()
    return files.number
