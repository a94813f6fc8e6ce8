"""How far each journal had come when the service starts."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from cubicle import record
from cubicle.journal import anchor, reading
from cubicle.journal.chat_files import ChatFiles
from cubicle.record import BadRecord

log = logging.getLogger(__name__)


def read_numbers(folder: Path, limit: int) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """The last number of each chat, and those that are known to have been higher. Blocks.

    Where the last number cannot be told, the journal is repaired.
    """
    numbers = {}
    record.make_folder(folder)
    for path in folder.iterdir():
        if not anchor.DIGEST.fullmatch(path.name):
            continue
        try:
            numbers[bytes.fromhex(path.name)] = _read_head(path, limit)
        except (OSError, BadRecord) as error:
            log.error("a journal cannot be used: %s", error, extra={"folder": path.name})
    known = anchor.read(folder)
    return numbers, {key: number for key, number in known.items() if number > numbers.get(key, 0)}


def _read_head(folder: Path, limit: int) -> int:
    with contextlib.suppress(OSError):
        known = reading.segments(folder)
        last = reading.last_line(known[-1][1]) if known else None
        if last is not None:
            return last.number
    files = ChatFiles(folder, limit)
    files.open()
    files.close()
    return files.number
