"""The files of the audit log, as the writer's thread keeps them: one chain for the whole service. Blocks.

It is kept as the journal of a chat is, with three differences: it has no bound in size unless one is set; at the start
only the end of it is read, since it may be large (`cubicle audit verify` reads all of it); and the file that is written
to has its place on the disk beforehand.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cubicle import durable, record
from cubicle.journal import format, reading
from cubicle.journal.chat_files import ChatFiles, Segment
from cubicle.journal.format import GAP, Chain
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

SEGMENT = 8 << 20
HEAD = "head.json"
STOP = "stop"
"""The last record of a service that ended in order."""
_NO_BOUND = 1 << 60
_DAY = 86_400
_MIN_ROLL_SECONDS = 3_600.0
"""A clock that is set to and fro does not make a file each time."""
UNCLEAN = "The service before this one was killed, or the machine went down: records of its last second may be missing."


@dataclass(frozen=True, slots=True)
class Head:
    """The last record that is known to have been written."""

    number: int
    hash: str


def read_head(folder: Path) -> Head | None:
    """What was saved last; None if nothing was, or it cannot be read."""
    try:
        found = record.read(folder / HEAD)
        return Head(found.whole("number"), found.text("hash", 64))
    except (FileNotFoundError, BadRecord):
        return None


class AuditFiles(ChatFiles):
    """One chain in one folder."""

    full = "The oldest records were dropped: the audit log had reached its size (AUDIT_MB)."
    old = "The oldest records were dropped: they had reached their age (AUDIT_DAYS)."

    def __init__(self, folder: Path, limit: int = 0, *, segment: int = SEGMENT) -> None:
        super().__init__(folder, limit or _NO_BOUND, segment=min(segment, limit // 4) if limit else segment)
        self._day = 0
        self._rolled = -_MIN_ROLL_SECONDS
        self._saved: Head | None = None
        self._ended = True
        """The service before this one ended in order, or there was none."""

    # ---- opening

    def open(self) -> None:
        """Go on after the last record. What is damaged there is set aside, and the log says what is missing."""
        self.close()
        record.make_folder(self.folder)
        chain, notes = Chain(), []
        self._segments = []
        found = reading.segments(self.folder)
        for place, (number, path) in enumerate(found):
            last = place == len(found) - 1
            segment = None if last else _read_segment(number, path)
            if segment is not None:
                self._segments.append(segment)
                continue
            if last:
                _go_on_from(chain, [before for _, before in found[:-1]], path)
            if why := self._take_in(number, path, chain if last else Chain(), last=last):
                notes.append(format.gap(why, chain.number + 1, chain.number))
        for broken in chain.breaks():
            if not broken.noted:
                why = f"Records {broken.first} to {broken.last} are missing, or were changed."
                notes.append(format.gap(why, broken.first, broken.last, broken.hash))
        self.number, self.hash = chain.number, chain.hash
        end = self.folder / reading.segment_name(self._segments[-1].number) if self._segments else None
        last_line = reading.last_line(end) if end is not None else None
        self._ended = last_line is None or last_line.kind == STOP
        first_line = reading.first_line(end) if end is not None else None
        self._day = int(first_line.at // _DAY) if first_line is not None else 0
        self._note_end(notes)

    def _note_end(self, notes: list[dict[str, object]]) -> None:
        """Say what is missing at the end."""
        head = read_head(self.folder)
        if head is not None and head.number > self.number:
            why = "The end of the audit log was missing when the service started: these records are gone."
            notes.append(format.gap(why, self.number + 1, head.number))
        for note in notes:
            log.error("the audit log is damaged: %s", note["why"])
            last = note["last"]
            number = last if isinstance(last, int) and last > self.number and not note["hash"] else None
            self.append([(number, format.body(time.time(), GAP, note))], sync=True)

    def note_start(self) -> bool:
        """Whether the service before this one ended in order, or there was none; if not, the log says so."""
        if not self._ended:
            log.warning("%s", UNCLEAN)
            note = format.gap(UNCLEAN, self.number + 1, self.number)
            self.append([(None, format.body(time.time(), GAP, note))], sync=True)
        return self._ended

    # ---- writing

    def append(self, bodies: Sequence[tuple[int | None, bytes]], *, sync: bool) -> None:
        day, now = int(time.time() // _DAY), time.monotonic()
        if self._fd >= 0 and day != self._day and now - self._rolled >= _MIN_ROLL_SECONDS and self._segments[-1].size:
            self._roll(self.number + 1)
        super().append(bodies, sync=sync)

    def _roll(self, first: int) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._segments[-1].size)  # the rest of its place on the disk
        super()._roll(first)
        self._day, self._rolled = int(time.time() // _DAY), time.monotonic()
        log.info("the audit log goes on in another file", extra={"record": self.number, "hash": self.hash})
        self._reserve()

    def _make_room(self, length: int, number: int) -> bool:
        was_open = self._fd >= 0
        noted = super()._make_room(length, number)
        if not was_open:
            self._reserve()
        return noted

    def _reserve(self) -> None:
        """Take the place on the disk for the whole file: a disk that others fill does not stop the log at once."""
        with contextlib.suppress(OSError):
            durable.reserve(self._fd, self._most)

    def save_head(self) -> None:
        """Keep how far the log has come: by it, it is noticed that its end is missing. Raises OSError."""
        head = Head(self.number, self.hash)
        if head != self._saved and head.number:
            record.write(self.folder / HEAD, {"number": head.number, "hash": head.hash})
            self._saved = head


def _read_segment(number: int, path: Path) -> Segment | None:
    """A segment by its first line alone; None if that is not good."""
    try:
        first = reading.first_line(path)
        size = path.lstat().st_size
    except OSError:
        return None
    return None if first is None else Segment(number, size, first.number + (first.kind == GAP), first.prev)


def _go_on_from(chain: Chain, before: Sequence[Path], path: Path) -> None:
    """Have the chain begin where the segment before this one ends; if that cannot be told, where this one begins."""
    with contextlib.suppress(OSError):
        last = reading.last_line(before[-1]) if before else None
        if last is not None:
            chain.number, chain.hash = last.number, last.hash
        elif (first := reading.first_line(path)) is not None:
            chain.number, chain.hash = first.number - (first.kind != GAP), first.prev
