"""What a change of a file leaves to be told, and to be undone: messages, and the texts of a diff."""

from __future__ import annotations

import os

from .messages import MAX_NUMBER, Message, Nothing, Request, count, field, flag, many, optional, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_TEXT = 8_000
"""Characters of each side of a change that are told."""
_MAX_COMPARED = 1024 * 1024
_CONTEXT = 3
_CHUNK = 1024 * 1024
_LARGE = 4 * 1024 * 1024


def _digest(value: object) -> str:
    if isinstance(value, str) and len(value) == 64 and not value.strip("0123456789abcdef"):
        return value
    raise ValueError("a SHA-256 in hexadecimal digits")


class FileChange(Message):
    """What was under a name before and after. A hash is None where there was no plain file that could be read."""

    before: str | None = field(optional(_digest), default=None)
    after: str | None = field(optional(_digest), default=None)
    size_before: int = field(count, default=0)
    size_after: int = field(count, default=0)
    kept: bool = field(flag, default=False)
    """Whether it can be undone, by the id that the request named."""
    reason: str = field(text, default="")
    """Why it cannot."""
    line: int = field(count, default=1)
    """Where the two texts begin in the file, counted from 1."""
    text_before: str | None = field(optional(text), default=None)
    """The lines that differ, with a few around them; None of a large or binary file, and of a new one."""
    text_after: str | None = field(optional(text), default=None)
    cut_before: int = field(count, default=0)
    """How many characters the text leaves out at its end."""
    cut_after: int = field(count, default=0)


class Undone(Message):
    """What is under the name now."""

    path: str = field(text, default="")
    size: int | None = field(optional(count), default=None)
    """None: there is no file any more."""
    hash: str | None = field(optional(_digest), default=None)


class Undo(Request[Nothing, Undone]):
    """Put back what a change of a file replaced, or with `redo` the change; NOT_KEPT, CHANGED, or EXISTS."""

    OP = "undo"
    id: str = field(text)
    redo: bool = field(flag, default=False)
    roots: list[str] | None = field(optional(many(text)), default=None)


def without_texts(change: FileChange) -> FileChange:
    """The change as it is told once more, without what takes room."""
    return change.replace(text_before=None, text_after=None)


def version_name(inode: int, size: int, mtime: float) -> str:
    """What tells one version of a file from another."""
    return "%d %d %s" % (min(inode, MAX_NUMBER), size, mtime.hex())


def version_at(path: str) -> str:
    """The version that is in place; empty where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return version_name(found.st_ino, found.st_size, found.st_mtime)


def sha256(fd: int) -> str:
    """The hash of an open file, from its start."""
    hash = _new_hash(os.fstat(fd).st_size)
    os.lseek(fd, 0, os.SEEK_SET)
    while True:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            return str(hash.hexdigest())
        hash.update(chunk)


def _new_hash(size: int) -> Any:
    """OpenSSL is several times as fast and takes 20 ms to load: for large files only."""
    if size < _LARGE:
        for name in ("_sha2", "_sha256"):  # from Python 3.12 on, and before
            try:
                return getattr(__import__(name), "sha256")()  # noqa: B009
            except ImportError:
                pass
    import hashlib

    return hashlib.sha256()


def compare(before: int, after: int) -> dict[str, object]:
    """The fields of FileChange that show how two open files differ; none where they are no texts, or large ones."""
    old, new = _lines(before), _lines(after)
    if old is None or new is None:
        return {}
    least = min(len(old), len(new))
    head = 0
    while head < least and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < least - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start, end = max(0, head - _CONTEXT), max(0, tail - _CONTEXT)
    found: dict[str, object] = {"line": start + 1}
    for side, lines in (("before", old), ("after", new)):
        whole = "\n".join(lines[start : len(lines) - end])
        found["text_" + side] = whole[:MAX_TEXT]
        found["cut_" + side] = max(0, len(whole) - MAX_TEXT)
    return found


def _lines(fd: int) -> list[str] | None:
    if os.fstat(fd).st_size > _MAX_COMPARED:
        return None
    os.lseek(fd, 0, os.SEEK_SET)
    content = b""
    while len(content) <= _MAX_COMPARED:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            break
        content += chunk
    if len(content) > _MAX_COMPARED or b"\0" in content:
        return None
    try:
        return content.decode().split("\n")
    except UnicodeDecodeError:
        return None
