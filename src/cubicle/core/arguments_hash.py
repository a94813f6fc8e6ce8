"""One hash for the arguments of a call: the same for the same JSON values, whatever the order of their names."""

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


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, str):
        kind, data = b"s", value.encode("utf-8", "surrogatepass")
    else:
        kind, data = b"j", json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()
    digest.update(b"%b%d:" % (kind, len(data)))
    digest.update(data)
