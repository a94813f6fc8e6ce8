"""The files of one chat's journal, as the writer's thread keeps them: appended to, bounded, repaired. Blocks."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cubicle import durable, record
from cubicle.journal import format, reading
from cubicle.journal.format import GAP, Chain, Line
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

_SEGMENTS = 8
"""Of a chat's bound, each segment may take this part."""
MIN_SEGMENT = 16 * 1024
HALF_LINE = "The last line had been written by half, and was cut off."
_GAP_BODY = re.compile(rb'"at":-?[0-9.]+,"kind":"gap"')


@dataclass(slots=True)
class Segment:
    number: int
    size: int
    first: int
    """The number of its first entry."""
    prev: str
    """The hash before its first line."""


class ChatFiles:
    """The journal of one chat. After an OSError it is closed and opened anew: what was written by half is cut off."""

    full = "The oldest entries were dropped: the journal had reached its size (JOURNAL_MB)."
    old = "The oldest entries were dropped: they had reached their age (JOURNAL_DAYS)."
    """What the journal says of what it drops."""

    def __init__(self, folder: Path, limit: int, *, segment: int = 0) -> None:
        """`segment`: bytes of each file, if it is not a part of the limit."""
        self.folder = folder
        self._limit = limit
        self._most = max(MIN_SEGMENT, segment or limit // _SEGMENTS)
        self._segments: list[Segment] = []
        self._blobs: dict[str, reading.Blob] = {}
        self._fd = -1
        self._unsynced = False
        self._one_call = True
        self.number = 0
        self.hash = format.NO_HASH

    # ---- opening and repair

    def open(self) -> None:
        """Check everything that is there. What is damaged is set aside, and the journal says what is missing."""
        self.close()
        record.make_folder(self.folder)
        notes: list[dict[str, object]] = []
        chain, self._segments = Chain(), []
        try:
            found = reading.segments(self.folder)
        except PermissionError:
            aside = record.keep_bad(self.folder)
            record.make_folder(self.folder)
            found = []
            notes.append(
                format.gap(f"The journal's folder could not be read, and was set aside as {aside.name}.", 1, 0)
            )
        for place, (number, path) in enumerate(found):
            why = self._take_in(number, path, chain, last=place == len(found) - 1)
            if why:
                notes.append(format.gap(why, chain.number + 1, chain.number))
        self.number, self.hash = chain.number, chain.hash
        self._blobs = {blob.digest: blob for blob in reading.blobs(self.folder)}
        for broken in chain.breaks():
            if not broken.noted:
                why = f"Entries {broken.first} to {broken.last} are missing, or were changed."
                notes.append(format.gap(why, broken.first, broken.last, broken.hash))
        for note in notes:
            log.warning("the journal of a chat is damaged: %s", note["why"], extra={"folder": self.folder.name})
            self.append([(None, format.body(time.time(), GAP, note))], sync=True)

    def reopen(self) -> None:
        """Go on with one that was closed, by its last line alone; if that is not as it was left, check everything."""
        if self._fd < 0 and self._segments:
            path, size = self.folder / reading.segment_name(self._segments[-1].number), self._segments[-1].size
            with contextlib.suppress(OSError):
                last = reading.last_line(path)
                if last is not None and last.hash == self.hash and path.lstat().st_size == size:
                    return
        self.open()

    def _take_in(self, number: int, path: Path, chain: Chain, *, last: bool) -> str:
        """Add a segment's good lines to the chain; what is wrong with the others is the answer."""
        try:
            texts, rest = reading.read_lines(path)
        except BadRecord as error:
            return (
                f"Segment {path.name} could not be read ({error}), and was set aside as {record.keep_bad(path).name}."
            )
        lines = [(found, text) for text in texts if (found := format.check(text)) is not None]
        damaged = len(lines) < len(texts) or (bool(rest) and not last)
        why = ""
        if damaged:
            good = b"".join(text + b"\n" for _, text in lines)
            aside = record.replace_bad(path, good) if good else record.keep_bad(path)
            why = f"Segment {path.name} was damaged, and was set aside as {aside.name}; its good lines were kept."
        elif rest:
            os.truncate(path, sum(len(text) + 1 for text in texts))
            why = HALF_LINE
        if lines:
            self._segments.append(segment_of(number, lines))
            for line, text in lines:
                chain.add(line, text)
        elif not damaged:
            durable.remove(path)  # an empty one: it was made, and nothing was written to it
        return why

    # ---- writing

    def append(self, bodies: Sequence[tuple[int | None, bytes]], *, sync: bool) -> None:
        """Write entries (their numbers; None for a gap, which takes that of the entry before it). Raises OSError."""
        if self._is_gone():
            log.warning("the files of a journal are gone: another one begins", extra={"folder": self.folder.name})
            self.open()
        buffer = bytearray()
        for number, body in _with_gaps(self.number, bodies):
            at = self.number if number is None else number
            line, hash = format.line(at, body, self.hash)
            if self._fd < 0 or self._segments[-1].size + len(buffer) + len(line) > self._most:
                self._write(buffer)
                buffer.clear()
                if self._make_room(len(line), at):
                    line, hash = format.line(at, body, self.hash)
            buffer += line
            self.number, self.hash = at, hash
        self._write(buffer, sync=sync)
        if sync:
            self.sync()

    def _is_gone(self) -> bool:
        """Whether somebody removed the open segment: the command line, of a chat that was deleted for good."""
        return self._fd >= 0 and not os.fstat(self._fd).st_nlink

    def _write(self, buffer: bytearray, *, sync: bool = False) -> None:
        """Write to the open segment; with `sync` on disk, in one call of the system where that can be."""
        if not buffer:
            return
        segment, done = self._segments[-1], 0
        flags = os.RWF_DSYNC if sync and not self._unsynced and self._one_call else 0
        try:
            while done < len(buffer):
                rest = memoryview(buffer)[done:] if done else buffer
                done += os.pwritev(self._fd, [rest], segment.size + done, flags)
        except OSError as error:
            if flags and error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                self._one_call = False  # another file system
                self._write(buffer)
                return
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, segment.size)
            raise
        segment.size += len(buffer)
        self._unsynced = self._unsynced or not flags

    def sync(self) -> None:
        if self._unsynced and self._fd >= 0:
            os.fdatasync(self._fd)
            self._unsynced = False

    def _make_room(self, length: int, number: int) -> bool:
        """Open the last segment, or a new one if it has no room for the next line. Whether a gap was written."""
        if self._fd < 0 and self._segments and self._segments[-1].size + length <= self._most:
            path = self.folder / reading.segment_name(self._segments[-1].number)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            return False
        self._roll(number)
        return self._drop_oldest(self._room)

    def _roll(self, first: int) -> None:
        self.sync()
        self.close()
        number = self._segments[-1].number + 1 if self._segments else 1
        path = self.folder / reading.segment_name(number)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._segments.append(Segment(number, 0, first, self.hash))
        durable.sync_folder(self.folder)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._segments) + sum(blob.size for blob in self._blobs.values())

    @property
    def _room(self) -> int:
        """Segments before the last one that have to go."""
        left = self._limit - self._most  # the last one may become full
        used = self.size - self._segments[-1].size
        before = -1
        for place, segment in enumerate(self._segments[:-1]):
            if used <= left:
                return place
            blobs = (blob.size for blob in self._blobs.values() if before < blob.segment <= segment.number)
            used -= segment.size + sum(blobs)
            before = segment.number
        return max(0, len(self._segments) - 1)

    def _drop_oldest(self, count: int, why: str = "") -> bool:
        """Drop segments and their blobs. First the journal says so: the chain holds whenever the power goes."""
        if not count:
            return False
        gone, left = self._segments[:count], self._segments[count]
        last = max(0, left.first - 1)
        body = format.body(time.time(), GAP, format.gap(why or self.full, 1, last, left.prev))
        line, self.hash = format.line(self.number, body, self.hash)
        self._write(bytearray(line))
        self.sync()
        for segment in gone:
            (self.folder / reading.segment_name(segment.number)).unlink(missing_ok=True)
        for blob in [blob for blob in self._blobs.values() if blob.segment <= gone[-1].number]:
            (self.folder / reading.blob_name(blob.segment, blob.digest)).unlink(missing_ok=True)
            del self._blobs[blob.digest]
        self._segments = self._segments[count:]
        return True

    def prune(self, number: int, size: int) -> None:
        """Drop the segments up to this one, which is not dropped if it has grown since."""
        old = sum(
            segment.number < number or (segment.number, segment.size) == (number, size) for segment in self._segments
        )
        if old and old == len(self._segments):
            self._roll(self.number)
            self._drop_oldest(old, self.old)
        elif old:
            if self._fd < 0:
                self._make_room(0, self.number)
            self._drop_oldest(old, self.old)

    def keep_blob(self, digest: str, data: bytes) -> None:
        """Keep a blob for as long as the entry that comes next. Raises OSError."""
        if len(data) > self._limit // 4:
            return
        if self._fd < 0:
            self._make_room(0, self.number + 1)
        here = self._segments[-1].number
        path = self.folder / reading.blob_name(here, digest)
        before = self._blobs.get(digest)
        if before is not None and before.segment != here:
            durable.move(self.folder / reading.blob_name(before.segment, digest), path)
        elif before is None:
            durable.write(path, data)
        self._blobs[digest] = reading.Blob(here, digest, len(data))
        if self.size > self._limit and not self._drop_oldest(self._room):
            self._roll(self.number + 1)
            self._drop_oldest(self._room)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError as error:  # what was acknowledged was put on disk before
                log.error(
                    "a journal's file failed as it was closed: %s", error.strerror, extra={"folder": self.folder.name}
                )


def _with_gaps(last: int, bodies: Sequence[tuple[int | None, bytes]]) -> Iterator[tuple[int | None, bytes]]:
    """The same, and a gap before an entry whose number does not follow: the files before it are gone."""
    for number, body in bodies:
        if number is not None:
            if number > last + 1 and not _GAP_BODY.match(body):
                note = format.gap("These entries are gone: their files were removed.", last + 1, number - 1)
                yield number - 1, format.body(time.time(), GAP, note)
            last = number
        yield number, body


def segment_of(number: int, lines: Sequence[tuple[Line, bytes]]) -> Segment:
    first = lines[0][0]
    size = sum(len(text) + 1 for _, text in lines)
    return Segment(number, size, first.number + (first.kind == GAP), first.prev)
