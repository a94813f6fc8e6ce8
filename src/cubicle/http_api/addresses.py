"""What an address says: the chat, the path byte for byte, and where the client sees the service."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import HTTPConnection

from cubicle.http_api.problems import refuse
from cubicle.log import note
from cubicle.rules import paths
from cubicle.rules.callers import Headers
from cubicle.rules.chats import DEFAULT_CHAT_ID, Chat
from cubicle.rules.isolation import Isolation

_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")


class _Anything(Convertor[str]):
    """`{path:anything}` in a route: also a path with line breaks, which `{path:path}` does not see."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())


def chat_of(connection: HTTPConnection, mode: Isolation) -> Chat:
    """The chat that the path parameter `chat` names, of the tenant that the door let in. Raises BadChatId."""
    named = Chat(connection.path_params["chat"], connection.state.tenant)
    chat = Chat(DEFAULT_CHAT_ID, named.tenant) if mode is Isolation.SINGLE else named
    note(chat=chat.id)
    return chat


def tail(connection: HTTPConnection, segments: int = 2) -> str:
    """What follows the first `segments` segments of the path, decoded once.

    From the raw path: there an encoded slash, and bytes that are no UTF-8, are still what they were.
    """
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


def check_origin(connection: HTTPConnection, base_url: str) -> None:
    """A page of another site, or one without an origin, can send a request but must change nothing. Refusal (403)."""
    headers = Headers(connection.scope["headers"])
    origin = headers.get("Origin")
    if origin is None or headers.get("Authorization") is not None:
        return
    ours = {(headers.get("Host") or "").lower(), urlsplit(base_url).netloc.lower()} - {""}
    try:
        known = urlsplit(origin).netloc.lower() in ours
    except ValueError:
        known = False
    if not known:
        raise refuse(403, "This request comes from a page of another site.")


def seen_base(connection: HTTPConnection) -> str:
    """Where the client sees the service, by its own Host header; empty when that is no plain host."""
    host = connection.headers.get("host", "").strip()
    prefix = str(connection.scope.get("root_path", ""))
    return f"{connection.scope['scheme']}://{host}{prefix}" if _HOST.fullmatch(host) else ""
