"""Long lists in parts: a cursor is the path of the last file of the part before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from mcp.shared.exceptions import MCPError

from cubicle.files.uploads import Upload
from cubicle.mcp_api import jsonrpc

MAX_COUNT = 10_000
"""In one answer. Few clients ask for a second part, so the first one is large."""


def page(files: Sequence[Upload], cursor: str | None) -> tuple[Sequence[Upload], str | None]:
    """The part behind the cursor, and the cursor of the next one. Raises MCPError."""
    if cursor is None and len(files) <= MAX_COUNT:
        return files, None
    behind = _path(cursor) if cursor is not None else b""
    rest = sorted((file for file in files if _raw(file) > behind), key=_raw)
    part = rest[:MAX_COUNT]
    return part, base64.urlsafe_b64encode(_raw(part[-1])).decode() if len(rest) > MAX_COUNT else None


def _raw(file: Upload) -> bytes:
    return file.path.encode("utf-8", "surrogateescape")


def _path(cursor: str) -> bytes:
    try:
        return base64.b64decode(cursor, b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise MCPError(jsonrpc.INVALID_PARAMS, "Unknown cursor: take nextCursor as it came.") from None
