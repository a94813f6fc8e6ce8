"""Reading the files of one chat's journal: segments of lines, and blobs. Everything here blocks."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cubicle import record
from cubicle.journal import format
from cubicle.journal.format import Entry, Line
from cubicle.record import BadRecord

MAX_SEGMENT = 64 << 20
"""Bytes of a segment that are read; no service writes one as large."""
_SEGMENT = re.compile(r"(\d{6,9})\.jsonl")
_NUMBER = re.compile(rb'\{"n":(\d{1,15}),')
_BLOB = re.compile(r"(\d{6,9})-([0-9a-f]{64})\.blob")


@dataclass(frozen=True, slots=True)
class Blob:
    segment: int
    """The segment with the newest entry that names it: it goes when that one does."""
    digest: str
    size: int


def segment_name(number: int) -> str:
    return f"{number:06}.jsonl"


def blob_name(segment: int, digest: str) -> str:
    return f"{segment:06}-{digest}.blob"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """The segments of a chat, the oldest first; none if there is no folder."""
    found = []
    for name in _names(folder):
        if match := _SEGMENT.fullmatch(name):
            found.append((int(match[1]), folder / name))
    return sorted(found)


def blobs(folder: Path) -> list[Blob]:
    found = []
    for name in _names(folder):
        if match := _BLOB.fullmatch(name):
            try:
                size = (folder / name).lstat().st_size
            except OSError:
                continue
            found.append(Blob(int(match[1]), match[2], size))
    return found


def set_aside(folder: Path) -> list[str]:
    """The names of what was damaged and is kept."""
    return sorted(name for name in _names(folder) if ".bad-" in name)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_lines(path: Path) -> tuple[list[bytes], bytes]:
    """The lines of a segment, and what follows the last line break. Raises BadRecord, FileNotFoundError."""
    *lines, rest = record.read_bytes(path, MAX_SEGMENT).split(b"\n")
    return lines, rest


def last_line(path: Path) -> Line | None:
    """The last line of a segment, if the file ends with one that is good. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        end = b""
        for length in (8 * 1024, format.MAX_LINE + 2):
            start = max(0, size - length)
            end = os.pread(fd, size - start, start)
            if start == 0 or end.count(b"\n") > 1:
                break
    finally:
        os.close(fd)
    if not end.endswith(b"\n"):
        return None
    return format.check(end[:-1].rpartition(b"\n")[2])


def first_line(path: Path) -> Line | None:
    """The first line of a segment, if it is good. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        start = os.pread(fd, 8 * 1024, 0)
        if b"\n" not in start:
            start = os.pread(fd, format.MAX_LINE + 1, 0)
    finally:
        os.close(fd)
    text, ended, _ = start.partition(b"\n")
    return format.check(text) if ended else None


def read_entries(folder: Path, after: int = 0, limit: int = 1000) -> list[Entry]:
    """Entries with a higher number than `after`, in their order; what cannot be read is passed over."""
    found: list[Entry] = []
    for text in _texts_after(folder, after):
        if after and _number(text) <= after:
            continue
        entry = format.entry(text)
        if entry is not None:
            found.append(entry)
            if len(found) >= limit:
                break
    return found


def all_entries(folder: Path) -> Iterator[Entry]:
    """Every entry in its order, a segment in memory at a time; what cannot be read is passed over."""
    for text in _texts_after(folder, 0):
        entry = format.entry(text)
        if entry is not None:
            yield entry


def _texts_after(folder: Path, after: int) -> Iterator[bytes]:
    """The lines of the segments that may have entries with a higher number."""
    known = segments(folder)
    firsts = [_first_number(path) for _, path in known] if after else []
    for place, (_, path) in enumerate(known):
        if after and place + 1 < len(known) and 0 < firsts[place + 1] <= after:
            continue
        try:
            lines, _ = read_lines(path)
        except (BadRecord, OSError):
            continue
        yield from lines


def _first_number(path: Path) -> int:
    """The number of a segment's first line; 0 if it cannot be told."""
    try:
        with open(path, "rb") as file:
            start = file.read(32)
    except OSError:
        return 0
    return _number(start)


def _number(text: bytes) -> int:
    match = _NUMBER.match(text)
    return int(match[1]) if match else 0


def read_blob(folder: Path, digest: str) -> bytes | None:
    """A blob by its SHA-256; None if it is not there, or is not what it was."""
    for blob in blobs(folder):
        if blob.digest == digest:
            try:
                data = record.read_bytes(folder / blob_name(blob.segment, digest), MAX_SEGMENT)
            except (BadRecord, OSError):
                return None
            return data if hashlib.sha256(data).hexdigest() == digest else None
    return None


def read_call(folder: Path, begun: int, ended: int) -> tuple[Entry | None, Entry | None]:
    """The beginning and the end of a call, by their numbers (0: there is none). Blocks."""
    return _read_one(folder, begun, "call"), _read_one(folder, ended, "end") if ended else None


def _read_one(folder: Path, number: int, kind: str) -> Entry | None:
    """Any number of gaps may have the number of the entry before them."""
    for text in _texts_after(folder, number - 1):
        found = _number(text)
        if found == number and (entry := format.entry(text)) is not None and entry.kind == kind:
            return entry
        if found > number:
            break
    return None
