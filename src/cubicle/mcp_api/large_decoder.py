"""Decodes large JSON so that others keep most of the event loop's time.

To decode 50 MB at once holds it up for a third of a second, on whatever thread. So long texts are taken out first and
decoded piece by piece; what is left is short, as the number of values is limited.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from time import monotonic
from typing import Any

from pydantic_core import from_json

from cubicle.core.request_limits import TooComplex

_LONG = 512
"""Bytes of a text from which on it is taken out."""
_PIECE = 128 * 1024
_BUSY_SECONDS = 0.002
_WINDOW = 4096
_QUOTE, _UNICODE = b'"', ord("u")
_FIRST_OF_TWO = (b"ud8", b"ud9", b"uda", b"udb")
"""How the escape of a code unit begins that is one character with the next."""
_LONGEST_CHARACTER = 4
"""Bytes."""


async def decode_large(body: bytes | bytearray) -> Any:
    """The value. Raises ValueError, and TooComplex for a name that is too long."""
    texts = _LongTexts()
    began = monotonic()
    for _ in texts.taken_from(body):
        if monotonic() - began > _BUSY_SECONDS:
            await asyncio.sleep(0)
            began = monotonic()
    return texts.put_back(from_json(texts.rest, cache_strings="keys"))


class _LongTexts:
    """The long texts of a JSON text."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._texts: list[str] = []
        self.rest = bytearray()
        """What is left, with marks in their place."""

    def taken_from(self, body: bytes | bytearray) -> Iterator[None]:
        """Take them out, step by step. Raises ValueError."""
        done = 0
        start = body.find(_QUOTE)
        while start >= 0:
            end = start
            while True:  # a quote that is escaped belongs to the text
                end = body.find(_QUOTE, end + 1)
                if end < 0:
                    raise ValueError("a text does not end")
                yield
                if not _is_escaped(body, end):
                    break
            if end - start > _LONG:
                self.rest += body[done:start]
                self.rest += b'"%s%d"' % (self._mark.encode(), len(self._texts))
                pieces = []
                for piece in _pieces(body, start + 1, end):
                    pieces.append(piece)
                    yield
                self._texts.append("".join(pieces))
                done = end + 1
            start = body.find(_QUOTE, end + 1)
        self.rest += body[done:]

    def put_back(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith(self._mark):
            return self._texts[int(value[len(self._mark) :])]
        if isinstance(value, dict):
            if any(name.startswith(self._mark) for name in value):
                raise TooComplex("A name in the JSON is too long.")
            return {name: self.put_back(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.put_back(each) for each in value]
        return value


def _is_escaped(body: bytes | bytearray, place: int) -> bool:
    """Whether the character there has an odd number of backslashes before it."""
    count = 0
    while True:
        before = body[max(0, place - count - _WINDOW) : place - count]
        found = len(before) - len(before.rstrip(b"\\"))
        count += found
        if found < _WINDOW:
            return count % 2 == 1


def _pieces(body: bytes | bytearray, start: int, end: int) -> Iterator[str]:
    """What the text in `body` from `start` to `end` says. Raises ValueError."""
    while start < end:
        cut = _cut(body, start, end)
        piece: str = from_json(b'"%b"' % bytes(body[start:cut]))
        yield piece
        start = cut


def _cut(body: bytes | bytearray, start: int, end: int) -> int:
    """Where a piece that begins at `start` may end: in no character, no escape, and between no two that are one."""
    cut = start + _PIECE
    place = body.find(b"\\", start, min(cut, end))
    while place >= 0:
        after = place + (6 if body[place + 1] == _UNICODE else 2)
        if body[place + 1 : place + 4].lower() in _FIRST_OF_TWO:
            after += 6
        cut = max(cut, after)
        place = body.find(b"\\", after, min(cut, end))
    for _ in range(_LONGEST_CHARACTER):
        if cut < end and body[cut] & 0xC0 == 0x80:
            cut += 1
    return min(cut, end)
