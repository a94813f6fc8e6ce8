"""Text from outside, made safe to stand inside a sentence of ours: one line, bounded, plainly data."""

from __future__ import annotations

import json

_LOOKED_AT = 16
"""Times as many characters as are kept: a text may be megabytes of blanks."""


def one_line(text: str, limit: int = 200) -> str:
    """The text without control or line-breaking characters, blanks joined, at most `limit` characters."""
    part = text[: _LOOKED_AT * limit]
    line = " ".join("".join(c if c.isprintable() else " " for c in part).split())
    return line if len(part) == len(text) and len(line) <= limit else line[: limit - 1] + "…"


def quoted(text: str, limit: int = 200) -> str:
    """The same in quotes that the text itself cannot end."""
    return json.dumps(one_line(text, limit), ensure_ascii=False).replace("`", "'")
