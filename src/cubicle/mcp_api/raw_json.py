"""JSON of which a part was encoded before: to encode 20 MB at once would hold up the event loop for a quarter second.

A call into the encoder holds the interpreter's lock, also on another thread, so a long text is encoded in pieces.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any

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


def _encoded(piece: str | bytes) -> bytes:
    return base64.b64encode(piece) if isinstance(piece, bytes) else json.dumps(piece)[1:-1].encode()


def dumps(value: Any) -> bytes:
    """The JSON of a value that may hold RawJson."""
    raw: list[bytes | bytearray] = []

    def mark(found: object) -> str:
        if not isinstance(found, RawJson):
            raise TypeError(f"no JSON for {type(found).__name__}")
        raw.append(found.encoded)
        return _MARK

    text = json.dumps(value, separators=(",", ":"), default=mark).encode()
    if not raw:
        return text
    first, *rest = text.split(_QUOTED_MARK)
    return b"".join([first, *(part for pair in zip(raw, rest, strict=True) for part in pair)])
