"""Paths that come in an address: which can name a file of a chat, and which an upload may take."""

from __future__ import annotations

import unicodedata
from urllib.parse import unquote, unquote_to_bytes

MAX_LENGTH = 4096
MAX_NAME = 255
DEEPEST = 32
"""Parts that the path of an upload may have: the list goes as deep."""
RESERVED = ".cubicle-tmp-"
"""Beginning of the names of files that are still being written."""

_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""With these a name looks like another: `\\u202egpj.exe` is shown as `exe.jpg`."""


class BadPath(ValueError):
    """The text cannot name a file; the message says why."""


def decoded(raw: bytes) -> str:
    """A path of an address as the sandbox knows it: percent-decoded once; bytes that are no UTF-8 are kept."""
    return unquote_to_bytes(raw).decode("utf-8", "surrogateescape")


def encoded(path: str) -> bytes:
    """The bytes of a path that `decoded` or a sandbox gave."""
    return path.encode("utf-8", "surrogateescape")


def readable(path: str) -> str:
    """The path as text that is always valid Unicode, for answers and archives."""
    return encoded(path).decode("utf-8", "replace")


def relative(path: str) -> str:
    """The path, checked: parts between single slashes, none of them empty, `.` or `..`. The empty path is the top."""
    if not path:
        return ""
    path = path.removesuffix("/")
    try:
        size = len(encoded(path))
        sizes = [len(encoded(part)) for part in path.split("/")]
    except UnicodeEncodeError:
        raise BadPath("The path is not text.") from None
    if "\0" in path:
        raise BadPath("A path cannot hold NUL.")
    if path.startswith("/"):
        raise BadPath("The path must be relative.")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise BadPath("A part of the path is empty, . or ..")
    if size > MAX_LENGTH or max(sizes) > MAX_NAME:
        raise BadPath(f"A name has at most {MAX_NAME} bytes, a path {MAX_LENGTH}.")
    return path


def is_plain(character: str) -> bool:
    """Whether a name may hold it. Blanks of every width and the joiners of emoji and of Persian are ordinary."""
    return unicodedata.category(character) not in _UNPRINTABLE and character not in _TURNING


def upload_name(path: str) -> str:
    """The path of an upload: relative, of plain characters, and nothing that another program may read as a way out."""
    name = relative(path)
    if not name or path.endswith("/"):
        raise BadPath("An upload needs a file name.")
    if not all(is_plain(character) for character in name):
        raise BadPath(
            "A file name cannot hold control characters, line breaks, "
            "characters that turn the writing around, or bytes that are no UTF-8."
        )
    parts = name.split("/")
    if len(parts) > DEEPEST:
        raise BadPath(f"A file can lie in {DEEPEST - 1} folders at most, one in the other.")
    for part in parts:
        if part.startswith(RESERVED):
            raise BadPath(f"A file name cannot begin with {RESERVED}.")
        for reading in _readings(part):
            if reading in (".", "..") or any(c in reading for c in "/\\\0"):
                raise BadPath("A file name cannot hold a slash, a backslash or .. in any spelling.")
    return name


def _readings(part: str) -> list[str]:
    """What the part becomes for a program that decodes it once more, or folds characters that look alike."""
    readings = [part]
    for _ in range(3):
        again = unquote(readings[-1])
        if again == readings[-1]:
            break
        readings.append(again)
    return [*readings, *(unicodedata.normalize("NFKC", text) for text in readings)]
