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
    """A value as it is sent."""

    def __init__(self, encoded: bytes | bytearray) -> None:
        self.encoded = encoded

    @classmethod
    def of(cls, fields: Mapping[str, str | bytes]) -> RawJson:
        """An object of texts; of bytes, their base64."""
        encoded = bytearray(b"{")
        for name, value in fields.items():
            encoded += (b"," if len(encoded) > 1 else b"") + json.dumps(name).encode() + b':"'
            for start in range(0, len(value), _PIECE):
                encoded += _encoded(value[start : start + _PIECE])
            encoded += b'"'
        encoded += b"}"
        return cls(encoded)

    @classmethod
    def list_of(cls, values: Sequence[Any]) -> RawJson:
        """A list, encoded a few at a time."""
        pieces = (_plain(values[start : start + _VALUES])[1:-1] for start in range(0, len(values), _VALUES))
        return cls(b"[" + b",".join(pieces) + b"]")


def _plain(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encoded(piece: str | bytes) -> bytes:
    return base64.b64encode(piece) if isinstance(piece, bytes) else json.dumps(piece)[1:-1].encode()


def dumps(value: Any) -> bytes:
    """The JSON of a value that may hold RawJson."""
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


def filled(text: bytes, raw: list[RawJson]) -> bytes:
    """A JSON text with what was encoded before in place of the marks, in their order; the same one if it has none."""
    first, *rest = text.split(_QUOTED_MARK)
    if not rest:
        return text
    return b"".join([first, *(part for one, more in zip(raw, rest, strict=True) for part in (one.encoded, more))])
