"""The end of an address, byte for byte: an encoded slash and bytes that are no UTF-8 are still what they were."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from cubicle.http_api.problems import refuse
from cubicle.rules import paths


def tail(connection: HTTPConnection, segments: int = 2) -> str:
    """What follows the first `segments` segments of the path, decoded once."""
    raw: bytes = connection.scope.get("raw_path") or connection.scope["path"].encode()
    raw = raw.partition(b"?")[0]
    prefix = str(connection.scope.get("root_path", "")).encode()
    own = raw[len(prefix) :] if prefix and raw.startswith(prefix) else raw
    parts = own.split(b"/", segments + 1)
    return paths.decoded(parts[segments + 1]) if len(parts) > segments + 1 else ""


def file_path(connection: HTTPConnection, segments: int = 2) -> str:
    """The same as a checked relative path; Refusal (400) when it cannot be one."""
    try:
        return paths.relative(tail(connection, segments))
    except paths.BadPath as error:
        raise refuse(400, str(error)) from None
