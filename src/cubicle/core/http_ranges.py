"""Which part of a file a request wants, and whether it has it already (RFC 9110, 13 and 14)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

_ONE_RANGE = re.compile(r"bytes=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE)
_FAR = 10**18  # no file is larger; a number of any length would be slow to read
_LATEST = 253402300799.0  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a file, as the headers of an answer say it."""

    size: int
    mtime: float
    inode: int

    @property
    def etag(self) -> str:
        return f'"{self.inode:x}-{self.size:x}-{self.mtime.hex()}"'

    @property
    def modified(self) -> datetime:
        """Whole seconds; a time that no calendar has becomes the nearest that it has."""
        seconds = self.mtime if self.mtime == self.mtime else 0.0
        return datetime.fromtimestamp(int(min(max(seconds, 0.0), _LATEST)), UTC)

    @property
    def last_modified(self) -> str:
        return format_datetime(self.modified, usegmt=True)


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes from `start`, `length` of them; `partial` when it answers a range."""

    start: int
    length: int
    partial: bool = False


class NotModified(Exception):
    """The client has this version."""


class Changed(Exception):
    """The client wants another version than this."""


class Unsatisfiable(Exception):
    """The range lies outside the file."""


def wanted(headers: Mapping[str, str], version: Version, *, ranged: bool = True) -> Part:
    """What to send. Several ranges, and a range of another version than this, are answered with the whole file.

    Without `ranged` every range is: only GET has them.
    """
    _check_wanted_version(headers, version)
    _check_modified(headers, version)
    whole = Part(0, version.size)
    found = _ONE_RANGE.fullmatch(headers.get("range", "")) if ranged else None
    # A date does not tell two versions of one second apart, and with every answer goes a tag that does.
    if not found or headers.get("if-range", version.etag).strip() != version.etag:
        return whole
    first, last = (_number(digits) for digits in found.groups())
    if first is None:
        if last is None:
            return whole
        start, end = max(0, version.size - last), version.size - 1
        if last == 0:
            raise Unsatisfiable
    else:
        start, end = first, version.size - 1 if last is None else min(last, version.size - 1)
        if last is not None and last < first:
            return whole
    if start >= version.size:
        raise Unsatisfiable
    return Part(start, end - start + 1, partial=True)


def _number(digits: str) -> int | None:
    if not digits:
        return None
    significant = digits.lstrip("0") or "0"
    return int(significant) if len(significant) < len(str(_FAR)) else _FAR


def _check_wanted_version(headers: Mapping[str, str], version: Version) -> None:
    tags = headers.get("if-match")
    if tags is not None:
        if tags.strip() != "*" and version.etag not in (t.strip() for t in tags.split(",")):
            raise Changed
    elif (since := _date(headers.get("if-unmodified-since"))) and version.modified > since:
        raise Changed


def _check_modified(headers: Mapping[str, str], version: Version) -> None:
    tags = headers.get("if-none-match")
    if tags is not None:
        if tags.strip() == "*" or version.etag in (t.strip().removeprefix("W/") for t in tags.split(",")):
            raise NotModified
    elif (since := _date(headers.get("if-modified-since"))) and version.modified <= since:
        raise NotModified


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text) if text else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date is None or date.tzinfo else date.replace(tzinfo=UTC)
