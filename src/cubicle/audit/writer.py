"""The thread that writes the audit log: takes a batch, writes it, puts it on disk. What cannot be written waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import cast

from cubicle import record
from cubicle.audit import inbox
from cubicle.audit.files import SEGMENT, STOP, AuditFiles
from cubicle.journal import aging, format
from cubicle.journal.format import GAP

log = logging.getLogger(__name__)

LOST = "The audit log could not be written for so long that these records had no room in memory."
RETRY_SECONDS = 1.0
_SAVE_SECONDS = 10.0
_LOOK_SECONDS = 2.0
"""Between two looks for notes of the command line."""
_MAX_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in their order; `lost` further ones came after them and were not kept."""

    bodies: Sequence[bytes] = ()
    size: int = 0
    lost: int = 0
    token: int = 0
    """Told when these are on disk."""


@dataclass(frozen=True, slots=True)
class Prune:
    """Drop what is older than this, at this reading of the service's clock."""

    now: float
    max_age: float


@dataclass(frozen=True, slots=True)
class Progress:
    """What the thread tells the event loop."""

    written: int = 0
    """Bytes of records that are on disk since the last time."""
    token: int = 0
    """The last batch that is."""
    error: str = ""
    """Why the rest waits; empty if nothing does."""


class AuditWriter:
    """Owns the thread and the files."""

    def __init__(
        self,
        folder: Path,
        tell: Callable[[Progress], None],
        *,
        limit: int = 0,
        segment: int = SEGMENT,
        version: str = "",
    ) -> None:
        self._folder = folder
        self._files = AuditFiles(folder, limit, segment=segment)
        self._tell = tell
        self._version = version
        self._queue: SimpleQueue[Batch | Prune | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._waiting: deque[bytes | int] = deque()
        """Records; a number stands for so many that were lost there."""
        self._tokens: deque[tuple[int, int, int]] = deque()
        """Of batches that wait: how many records are to be on disk, bytes, token."""
        self._taken = self._done = 0
        self._number = 0
        self._usable = self._begun = False
        self._error = self._reported = ""
        self._saved = self._looked = self._retry = 0.0
        self._notes: tuple[int, Sequence[Path]] = (0, ())
        """Of the command line, that wait: how many records are to be on disk before their files go."""

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Batch | Prune) -> None:
        self._queue.put(item)

    def stop(self, timeout: float) -> bool:
        """End the thread after what it was given; False if it could not be written. Blocks."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive() and not self._waiting

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=RETRY_SECONDS if self._waiting or not self._usable else _LOOK_SECONDS)
            except Empty:
                item = Batch()
            if item is None:
                break
            if isinstance(item, Prune):
                self._prune(item)
            else:
                self._take(item)
                self._flush(asked=bool(item.token))
        self._end()

    def _take(self, batch: Batch) -> None:
        self._waiting.extend(batch.bodies)
        self._taken += len(batch.bodies)
        if batch.lost:
            self._waiting.append(batch.lost)
            self._taken += 1
        if batch.token:
            self._tokens.append((self._taken, batch.size, batch.token))

    def _flush(self, *, asked: bool = False, now: bool = False) -> None:
        """Write all that waits; what cannot be written goes on waiting, and is tried again after a while or `now`."""
        if not now and time.monotonic() < self._retry:
            self._report(asked=asked)
            return
        try:
            self._open()
            self._read_inbox()
            self._write()
        except OSError as error:
            self._failed(error.strerror or type(error).__name__)
        except Exception:
            log.exception("the audit log could not be written")
            self._failed("the service's log says why")
        else:
            if self._error:
                log.warning("the audit log can be written again")
            self._error = ""
        self._report(asked=asked)

    def _open(self) -> None:
        if self._usable:
            return
        self._files.open()
        if not self._begun:
            clean = self._files.note_start()
            self._begun, self._number = True, self._files.number
            fields = {"version": self._version, "clean": clean}
            self._waiting.appendleft(format.body(time.time(), "start", fields))
            self._taken += 1
            self._tokens = deque((count + 1, size, token) for count, size, token in self._tokens)
        while self._waiting and self._number < self._files.number:  # written before it failed
            self._pop()
        self._number = max(self._number, self._files.number)
        self._usable = True

    def _write(self) -> None:
        while self._waiting:
            if isinstance(lost := self._waiting[0], int):
                last = self._number + lost
                note = format.body(time.time(), GAP, format.gap(LOST, self._number + 1, last))
                self._files.append([(last, note)], sync=True)
                self._pop()
                continue
            bodies = takewhile(lambda one: isinstance(one, bytes), islice(self._waiting, _MAX_BATCH))
            some = [(self._number + 1 + place, cast(bytes, body)) for place, body in enumerate(bodies)]
            self._files.append(some, sync=True)
            for _ in some:
                self._pop()
        self._files.sync()
        if self._notes[1] and self._done >= self._notes[0]:
            for path in self._notes[1]:
                record.remove(path)
            self._notes = (0, ())
        if time.monotonic() - self._saved >= _SAVE_SECONDS:
            self._save_head()

    def _save_head(self) -> None:
        self._saved = time.monotonic()
        try:
            self._files.save_head()
        except OSError as error:  # the log itself has its place on the disk
            log.warning("how far the audit log has come could not be saved: %s", error.strerror)

    def _pop(self) -> None:
        """The first that waits is on disk."""
        first = self._waiting.popleft()
        self._number += first if isinstance(first, int) else 1
        self._done += 1

    def _failed(self, why: str) -> None:
        if self._error != why:
            log.error("the audit log cannot be written: %s", why)
        self._error, self._usable, self._retry = why, False, time.monotonic() + RETRY_SECONDS
        self._files.close()

    def _report(self, *, asked: bool) -> None:
        """Tell the event loop, if there is news or it `asked`."""
        written = token = 0
        while self._tokens and self._tokens[0][0] <= self._done:
            _, size, token = self._tokens.popleft()
            written += size
        if asked or token or self._error != self._reported:
            self._reported = self._error
            self._tell(Progress(written, token, self._error))

    def _read_inbox(self) -> None:
        """Take what the command line left; a note is removed once it is in the log."""
        if self._notes[1] or time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        notes = inbox.read_notes(self._folder)
        self._take(Batch([body for _, body in notes]))
        self._notes = (self._taken, [path for path, _ in notes])

    def _prune(self, prune: Prune) -> None:
        try:
            known = aging.read_ages(self._folder)
            ages, old = aging.look(self._folder, known, prune.now, prune.now - prune.max_age)
            if ages != known:
                aging.write_ages(self._folder, ages)
            if old is not None and self._usable:
                self._files.prune(old.number, old.size)
        except OSError as error:
            log.warning("old records of the audit log could not be dropped: %s", error.strerror)
        except Exception:
            log.exception("old records of the audit log could not be dropped")

    def _end(self) -> None:
        self._flush(now=True)
        self._take(Batch([format.body(time.time(), STOP, {})]))
        self._flush(now=True)
        if self._error:
            log.error("%d records of the audit log could not be written: %s", len(self._waiting), self._error)
            return
        self._save_head()
        log.info("the audit log is closed", extra={"record": self._files.number, "hash": self._files.hash})
        self._files.close()
