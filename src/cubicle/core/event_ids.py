"""Ids of the events of an answer, by which a client that lost its connection goes on where it was.

An id is `<payload>.<mac>.<number>`: the call and the id of its request, an HMAC-SHA256 over both, the tenant, the chat
and the MCP session, and the number of the event. Nobody can make one up, and it opens nothing for anybody else. It
names its request, so that a service that was restarted can answer it. It also names the conversation by which `_meta`
of the request named the chat: whoever comes back sends no `_meta`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from dataclasses import dataclass
from typing import Any

from cubicle.core.chat import Chat

MAX_LENGTH = 512
MAX_REQUEST_ID = 128
"""Characters of a request's id in JSON, that are ASCII: the answer to one with a longer id cannot be resumed."""
_MAC_BYTES = 16
_MAX_NUMBER = 10**9


@dataclass(frozen=True, slots=True)
class EventId:
    """One event of the answer to one request."""

    call: str
    request: int | str
    number: int


def signing_key(secret: bytes) -> bytes:
    return hmac.digest(secret, b"cubicle event ids", "sha256")


def is_short(request: int | str) -> bool:
    """Whether the id of a request is short enough to be a part of an event's id."""
    return isinstance(request, int) or len(json.dumps(request)) <= MAX_REQUEST_ID + len('""')


def prefix(key: bytes, chat: Chat, session: str, call: str, request: int | str, conversation: str = "") -> str:
    """What all ids of one answer begin with; the number of the event follows."""
    fields = [call, request, conversation] if conversation else [call, request]
    payload = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
    return f"{payload}.{_mac(key, chat, session, payload)}."


def parse(key: bytes, chat: Chat, session: str, id: str) -> EventId | None:
    """What an id says that was made for this chat and session; None for every other text."""
    parts = id.split(".") if len(id) <= MAX_LENGTH and id.isascii() else []
    if len(parts) != 3 or not hmac.compare_digest(parts[1], _mac(key, chat, session, parts[0])):
        return None
    if not parts[2].isdecimal() or len(parts[2]) > len(str(_MAX_NUMBER)):
        return None
    fields = _fields(parts[0])
    return EventId(fields[0], fields[1], int(parts[2])) if len(fields) in (2, 3) else None


def conversation(id: str) -> str | None:
    """The conversation that an id names, which nobody has checked: only `parse` tells whether the id is a true one."""
    fields = _fields(id.partition(".")[0]) if len(id) <= MAX_LENGTH and id.isascii() else []
    return fields[2] if len(fields) == 3 and isinstance(fields[2], str) else None


def _fields(payload: str) -> list[Any]:
    try:
        fields = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return []
    return fields if isinstance(fields, list) else []


def _mac(key: bytes, chat: Chat, session: str, payload: str) -> str:
    text = "\0".join((chat.tenant, chat.id, session, payload))
    return base64.urlsafe_b64encode(hmac.digest(key, text.encode(), "sha256")[:_MAC_BYTES]).decode().rstrip("=")
