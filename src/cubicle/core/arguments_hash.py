"""One hash for the arguments of a call: the same for the same JSON values, whatever the order of their names. And each
of them as a text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def arguments_hash(tool: str, arguments: Mapping[str, Any]) -> str:
    """SHA-256 of a tool's name and its arguments."""
    digest = hashlib.sha256()
    _add(digest, tool)
    for name in sorted(arguments):
        _add(digest, name)
        _add(digest, arguments[name])
    return digest.hexdigest()


def as_text(value: Any, most: int) -> str:
    """An argument as it is shown. To write one of 50 MB as JSON takes half a second: so not what is large."""
    if isinstance(value, str):
        return value
    return "(a large value)" if is_large(value, most) else json.dumps(value, default=str)


def is_large(value: Any, most: int = 1 << 20) -> bool:
    """Whether it takes long to hash or to write: more characters than this, or very many parts."""
    left, parts = most, [value]
    while parts:
        part = parts.pop()
        left -= 16 + (len(part) if isinstance(part, str) else 0)
        if left < 0:
            return True
        if isinstance(part, Mapping):
            parts += [*part.keys(), *part.values()] if len(part) < most else [" " * most]
        elif isinstance(part, list):
            parts += part if len(part) < most else [" " * most]
    return False


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, str):
        kind, data = b"s", value.encode("utf-8", "surrogatepass")
    elif is_large(value):
        _add_parts(digest, value)
        return
    else:
        kind, data = b"j", json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()
    digest.update(b"%b%d:" % (kind, len(data)))
    digest.update(data)


def _add_parts(digest: Any, value: Any) -> None:
    """Of a large one: the JSON of all of it would hold the interpreter's lock, from whatever thread."""
    if isinstance(value, Mapping):
        kind, parts = b"m", [part for name in sorted(value) for part in (name, value[name])]
    else:
        kind, parts = b"l", value
    digest.update(b"%b%d:" % (kind, len(parts)))
    for part in parts:
        _add(digest, part)
