"""What an address says: the path byte for byte, and where the client sees the service."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import HTTPConnection

from cubicle.core import paths
from cubicle.http_api.errors import refuse
from cubicle.http_api.routes import row_of

_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")

_MAX_DIGITS = 18


class _Anything(Convertor[str]):
    """`{path:anything}` in a route: also a path with line breaks, which `{path:path}` does not see."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Token(Convertor[str]):
    """`{page:token}` in a route: an id that another program made, and nothing that could be a path."""

    regex = "[A-Za-z0-9][A-Za-z0-9_-]{0,127}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Number(Convertor[int]):
    """`{port:number}` in a route. One of any length is a number, and none that anything has; to read it fails."""

    regex = "[0-9]+"

    def convert(self, value: str) -> int:
        return int(value) if len(value) <= _MAX_DIGITS else 10**_MAX_DIGITS

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("anything", _Anything())
register_url_convertor("number", _Number())
register_url_convertor("token", _Token())


def route_path(scope: MutableMapping[str, Any]) -> str:
    """The path without the prefix under which a proxy shows the service (ROOT_PATH)."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


def tail(connection: HTTPConnection) -> str:
    """What the URL has in the place of `{path}`, decoded once.

    From the raw path: there an encoded slash, and bytes that are no UTF-8, are still what they were.
    """
    segments = row_of(connection.scope).segments_before_path
    parts = _own(connection).split(b"/", segments + 1)
    return paths.decoded(parts[segments + 1]) if len(parts) > segments + 1 else ""


def segment(connection: HTTPConnection, number: int) -> str:
    """One segment of the path, decoded once: an encoded slash does not divide it."""
    parts = _own(connection).split(b"/")
    return paths.decoded(parts[number]) if len(parts) > number else ""


def _own(connection: HTTPConnection) -> bytes:
    """The raw path without the prefix of a proxy."""
    raw: bytes = connection.scope.get("raw_path") or connection.scope["path"].encode()
    raw = raw.partition(b"?")[0]
    prefix = str(connection.scope.get("root_path", "")).encode()
    return raw[len(prefix) :] if prefix and raw.startswith(prefix) else raw


def way_to_root(connection: HTTPConnection) -> str:
    """The relative way from this address to the root of the service, true behind any prefix of a proxy."""
    return "../" * (_own(connection).count(b"/") - 1) or "./"


def without_key(query: str) -> str:
    """A query less the signature of a signed link."""
    return "&".join(part for part in query.split("&") if part.partition("=")[0] != "key")


def same_with(connection: HTTPConnection, query: str) -> str:
    """The way from this address to the same one with another query."""
    last = quote(_own(connection).rpartition(b"/")[2], safe="%:@!$&'()*+,;=~")
    return f"./{last}{'?' + query if query else ''}"


def unsigned(connection: HTTPConnection) -> str | None:
    """The way from this address to the same one without the signature of a signed link; None when it has none."""
    query: str = connection.scope["query_string"].decode("latin-1")
    rest = without_key(query)
    if rest == query:
        return None
    return same_with(connection, rest)


def file_path(connection: HTTPConnection) -> str:
    """The same as a checked relative path; Refusal (400) when it cannot be one."""
    try:
        return paths.relative(tail(connection))
    except paths.BadPath as error:
        raise refuse(400, str(error)) from None


def seen_base(connection: HTTPConnection) -> str:
    """Where the client sees the service, by its own Host header; empty when that is no plain host."""
    host = connection.headers.get("host", "").strip()
    prefix = str(connection.scope.get("root_path", ""))
    return f"{connection.scope['scheme']}://{host}{prefix}" if _HOST.fullmatch(host) else ""


def require_no_body(connection: HTTPConnection) -> None:
    """What is asked for stands in the query: values in a body would be passed over without a word. Some clients send
    `{}` whenever there are none."""
    if connection.headers.get("content-length", "0") not in ("0", "2") or "transfer-encoding" in connection.headers:
        raise refuse(400, "This takes its values from the query of the address, not from a body.")
