"""JSON of which a part was encoded before: to encode 20 MB at once would hold up the event loop for a quarter second.

A call into the encoder holds the interpreter's lock, also on another thread, so a long text is encoded in pieces.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

_VALUES = 100
_PIECE = 48 * 1024
"""Characters, and bytes of which base64 makes whole groups."""
_MARK = secrets.token_hex(16)
"""Stands for what was encoded before, while the rest is encoded; nobody can guess it."""
_QUOTED_MARK = json.dumps(_MARK).encode()


class RawJson:
    """A value as it is sent, in pieces: to put them together would take as long again."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    @classmethod
    def of(cls, fields: Mapping[str, str | bytes]) -> RawJson:
        """An object of texts; of bytes, their base64."""
        pieces = [b"{"]
        for name, value in fields.items():
            pieces.append((b"," if len(pieces) > 1 else b"") + json.dumps(name).encode() + b':"')
            pieces += [_encoded(value[start : start + _PIECE]) for start in range(0, len(value), _PIECE)]
            pieces.append(b'"')
        return cls(*pieces, b"}")

    @classmethod
    def list_of(cls, values: Sequence[Any]) -> RawJson:
        """A list, encoded a few at a time."""
        pieces = [b"["]
        for start in range(0, len(values), _VALUES):
            pieces.append((b"," if start else b"") + _plain(values[start : start + _VALUES])[1:-1])
        return cls(*pieces, b"]")


def _plain(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encoded(piece: str | bytes) -> bytes:
    return base64.b64encode(piece) if isinstance(piece, bytes) else json.dumps(piece)[1:-1].encode()


def dumps(value: Any) -> list[bytes]:
    """The JSON of a value that may hold RawJson, in pieces."""
    raw: list[RawJson] = []

    def mark(found: object) -> str:
        if not isinstance(found, RawJson):
            raise TypeError(f"no JSON for {type(found).__name__}")
        raw.append(found)
        return _MARK

    return filled(json.dumps(value, separators=(",", ":"), default=mark).encode(), raw)


def marked(value: Any, raw: list[RawJson]) -> Any:
    """A value, or a list of them, with marks for those that were encoded before, which are put into `raw`."""
    if isinstance(value, list):
        return [marked(each, raw) for each in value]
    if isinstance(value, RawJson):
        raw.append(value)
        return _MARK
    return value


def filled(text: bytes, raw: list[RawJson]) -> list[bytes]:
    """The pieces of a JSON text, with what was encoded before in place of the marks, in their order."""
    first, *rest = text.split(_QUOTED_MARK) if raw else [text]
    pieces = [first]
    if rest:
        for one, more in zip(raw, rest, strict=True):
            pieces += [*one.pieces, more]
    return pieces
