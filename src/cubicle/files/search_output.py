"""What `find`, `rg` and `grep` printed in a sandbox, as results: hostile bytes, all of it bounded. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cubicle.core.paths import MAX_LENGTH
from cubicle.files.browse import ROOTS, Root, shown_path

MAX_TEXT = 300
"""Characters of a line that are told."""
_MAX_RECORD = MAX_LENGTH + 4096
_NUMBER = re.compile(rb"([0-9]{1,9})[:-]")
_KINDS: dict[bytes, Literal["file", "directory", "symlink"]] = {b"f": "file", b"d": "directory", b"l": "symlink"}
_FIELDS = 4
"""Kind, size, time and path of each name that `find` prints."""


@dataclass(frozen=True, slots=True)
class FoundName:
    root: Root
    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mtime: float


@dataclass(frozen=True, slots=True)
class FoundLine:
    root: Root
    path: str
    line: int
    text: str


class Records:
    """Cuts a stream of bytes at a separator. Of a record that is too long, the beginning is kept."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._begun = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        *ended, rest = data.split(self._separator)
        for part in ended:
            self._add(part)
            yield bytes(self._begun)
            self._begun.clear()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._begun += part[: _MAX_RECORD - len(self._begun)]


class Names:
    """The output of `find -printf '%y\\0%s\\0%T@\\0%p\\0'`."""

    def __init__(self) -> None:
        self._records = Records(b"\0")
        self._fields: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[FoundName]:
        for field in self._records.feed(data):
            self._fields.append(field)
            if len(self._fields) == _FIELDS:
                kind, size, mtime, path = self._fields
                self._fields = []
                place = place_of(path)
                if place is not None:
                    yield FoundName(*place, _KINDS.get(kind, "other"), _whole(size), _seconds(mtime))


class Lines:
    """The output of `rg --null --line-number`, or of `grep -Z -n`: path, NUL, number, colon, text."""

    def __init__(self) -> None:
        self._records = Records(b"\n")

    def feed(self, data: bytes) -> Iterator[FoundLine]:
        for record in self._records.feed(data):
            path, nul, rest = record.partition(b"\0")
            number = _NUMBER.match(rest)
            place = place_of(path) if nul and number else None
            if place is not None and number is not None:
                text = rest[number.end() : number.end() + 4 * MAX_TEXT].decode("utf-8", "replace")
                yield FoundLine(*place, int(number[1]), text[:MAX_TEXT])


def place_of(full: bytes) -> tuple[Root, str] | None:
    """Root and path, as people name it, of a path in the sandbox; None for one that is no file of the chat."""
    path = full.decode("utf-8", "surrogateescape")
    for root, folder in ROOTS.items():
        rest = path.removeprefix(folder + "/")
        if rest != path and rest and len(full) <= MAX_LENGTH:
            return root, shown_path(root, rest)
    return None


def _whole(digits: bytes) -> int:
    return int(digits) if digits.isdigit() and len(digits) < 19 else 0


def _seconds(text: bytes) -> float:
    try:
        value = float(text[:32])
    except ValueError:
        return 0.0
    return value if -1e11 < value < 1e11 else 0.0
