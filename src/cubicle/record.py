"""Records: small JSON files that the service keeps, read as if a stranger had written them.

A record has a version. The rule that lets one version go back and forth: a reader takes the fields that it needs,
checks their types and ignores the others, so a record of the next version is read. A field never changes its meaning:
a new meaning is a new name, and the old one is written for one version more. What is two versions ahead may not follow
that rule any more: it is neither read nor repaired nor removed (NewerRecord).

BadRecord
└── NewerRecord   written by a version that this one does not know
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cubicle import durable

VERSION = 1
MAX_SIZE = 256 * 1024

# What says that the file itself cannot be read; anything else (too many open files, say) is no damage, and is raised.
_DAMAGE = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EIO, errno.EUCLEAN}
_DAMAGE |= {errno.EBADMSG, errno.ENAMETOOLONG}


class BadRecord(Exception):
    """There is a record, and it cannot be used; the message says why."""


class NewerRecord(BadRecord):
    """The record was written by a version that this one does not know."""


@dataclass(frozen=True, slots=True)
class Fields:
    """What a record says. Each getter raises BadRecord where the field is missing or of another type."""

    values: Mapping[str, object]

    def text(self, name: str, longest: int = 4096) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or len(value) > longest:
            raise BadRecord(f"{name} is not a text of at most {longest} characters")
        return value

    def whole(self, name: str, low: int = 0, high: int = 2**62) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadRecord(f"{name} is not a whole number from {low} to {high}")
        return value

    def number(self, name: str) -> float:
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 2**62:
            raise BadRecord(f"{name} is not a number")
        return float(value)

    def texts(self, name: str) -> list[str]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise BadRecord(f"{name} is not a list of texts")
        return value

    def fields(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise BadRecord(f"{name} is not an object")
        return Fields(value)


def read(path: Path, max_size: int = MAX_SIZE) -> Fields:
    """A record. Raises FileNotFoundError, BadRecord, or what the host says if it is not the record's fault."""
    found = parsed(read_bytes(path, max_size))
    if not isinstance(found, dict):
        raise BadRecord("it is not a JSON object")
    version = found.get("version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadRecord("its version is not a number")
    if version > VERSION + 1:
        raise NewerRecord(f"it was written by a newer version of the service (record version {version})")
    return Fields(found)


def read_bytes(path: Path, max_size: int = MAX_SIZE) -> bytes:
    """The content of a small plain file; links are not followed, and nothing that is not a file is waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadRecord("it is not a plain file")
            content = bytearray()
            while len(content) <= max_size and (chunk := os.read(fd, max_size + 1 - len(content))):
                content += chunk
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _DAMAGE:
            raise BadRecord(f"it cannot be read: {error.strerror}") from None
        raise
    if len(content) > max_size:
        raise BadRecord(f"it is larger than {max_size} bytes")
    return bytes(content)


def read_text(path: Path, max_size: int = MAX_SIZE) -> str:
    """The same as text; what is no UTF-8 is replaced."""
    return read_bytes(path, max_size).decode("utf-8", "replace")


def parsed(content: bytes) -> object:
    """JSON of a stranger. Raises BadRecord."""
    if not content.strip():
        raise BadRecord("it is empty")
    try:
        return json.loads(content)
    except RecursionError:
        raise BadRecord("it is nested too deeply") from None
    except ValueError:
        raise BadRecord("it is not JSON") from None


def write(path: Path, fields: Mapping[str, object], *, mode: int = 0o600) -> None:
    """Put a record on disk, in place of what is there; a folder in its place is kept under another name."""
    write_bytes(path, json.dumps({"version": VERSION, **fields}).encode(), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """The same for a file that is no JSON."""
    clear_folder(path)
    durable.write(path, content, mode=mode)


def remove(path: Path) -> None:
    """Remove a record if there is one; a folder in its place is kept under another name."""
    clear_folder(path)
    durable.remove(path)


def clear_folder(path: Path) -> None:
    """Make room for a file where a folder is: it is renamed, never removed."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            keep_bad(path)


def make_folder(path: Path, *, mode: int = 0o700) -> None:
    """Make a folder on disk; what is there and is none is renamed, never removed."""
    if os.path.lexists(path) and not path.is_dir():
        keep_bad(path)
    durable.make_folder(path, mode=mode)


def make_root(path: Path) -> None:
    """The same for a folder of DATA_DIR itself, which the operator may have put on another disk, by a link. While that
    disk is not mounted nothing is made in its place: all chats would look lost. Raises FileNotFoundError."""
    if path.is_symlink():
        try:
            path.stat()
        except FileNotFoundError:
            why = f"It is a link to {os.readlink(path)}, which is not there: mount its disk"
            raise FileNotFoundError(errno.ENOENT, why, str(path)) from None
        except OSError:
            pass  # a link to itself, say: that is damage
    make_folder(path)


def keep_bad(path: Path) -> Path:
    """Give a damaged record another name, beside the old one; which."""
    aside = _bad_name(path)
    durable.move(path, aside)
    return aside


def copy_bad(path: Path, max_size: int = MAX_SIZE) -> Path:
    """The same for a record of which only a part is damaged: a copy, so that the good part is always there."""
    aside = _bad_name(path)
    durable.write(aside, read_bytes(path, max_size), mode=0o600)
    return aside


def replace_bad(path: Path, good: bytes) -> Path:
    """Put what is good of a damaged record in its place, and keep all of it under another name; which. Whatever happens
    on the way, the record is at its place as it was, or as it is to be."""
    aside = _bad_name(path)
    os.link(path, aside)
    try:
        durable.write(path, good)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    return aside


def _bad_name(path: Path) -> Path:
    """One that no other has, or what was set aside before would be replaced: many are within one second."""
    return path.with_name(f"{path.name}.bad-{stamp()}-{secrets.token_hex(8)}")


def stamp() -> str:
    """This moment, for a file's name."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
