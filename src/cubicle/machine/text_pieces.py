"""Long texts as bytes, in pieces: all of one at once would hold up the event loop."""

from __future__ import annotations

from collections.abc import Iterator

_PIECE = 64 * 1024


def encoded(text: str, errors: str) -> Iterator[bytes]:
    """A text as UTF-8."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE].encode("utf-8", errors)
