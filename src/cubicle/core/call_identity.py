"""What a repeated tool call has in common with the first: the client's own key, the id of the model's tool call, or the
MCP session and the id of the request. It counts within one chat of one tenant."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from cubicle.core.caller import Headers
from cubicle.core.chat import Chat

HEADER = "Idempotency-Key"
KEYS = ("cubicle/idempotencyKey", "idempotencyKey", "idempotency_key")
"""In `_meta`: a key that the client made for this call, as in the header."""
TOOL_CALLS = ("claudecode/toolUseId", "callId", "toolCallId", "tool_call_id")
"""In `_meta`: how the client names the model's tool call. Some models only number them: a short one says nothing."""
MAX_LENGTH = 255
_MIN_TOOL_CALL = 12


class BadIdentity(ValueError):
    """The key is none; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """The identity of one call."""

    text: str
    chosen: bool = True
    """The client means it as one, and can come back with it. If not, it is only that of the request."""
    strict: bool = False
    """Other arguments under it are an error, not another call."""

    def command(self, chat: Chat, arguments_hash: str) -> str:
        """The id under which it is done in the sandbox: the same for the same call, on whatever service."""
        parts = (chat.tenant, chat.id, self.text, arguments_hash)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def find_identity(
    headers: Headers, meta: Mapping[str, object], session: str | None, request: int | str | None
) -> CallIdentity | None:
    """The identity of a call; None for one that nobody could repeat. Raises BadIdentity."""
    if (key := _header(headers)) is not None:
        return CallIdentity(f"key:{key}", strict=True)
    for name in KEYS:
        if meta.get(name) is not None:
            return CallIdentity(f"key:{_checked(meta[name], f'`_meta.{name}`')}", strict=True)
    for name in TOOL_CALLS:
        value = meta.get(name)
        if isinstance(value, str) and _MIN_TOOL_CALL <= len(value) <= MAX_LENGTH and value.isprintable():
            return CallIdentity(f"call:{value}")
    if session and request is not None:
        return request_identity(session, request)
    return None


def request_identity(session: str, request: int | str) -> CallIdentity:
    """That of a request of an MCP session."""
    return CallIdentity(f"request:{session}:{request}"[: 2 * MAX_LENGTH], chosen=False)


def _header(headers: Headers) -> str | None:
    values = headers.all(HEADER)
    if not values:
        return None
    if len(values) > 1:
        raise BadIdentity(f"Send one header {HEADER}.")
    value = values[0]
    if len(value) >= 2 and value[0] == value[-1] == '"':  # as the draft of the IETF has it
        value = value[1:-1]
    return _checked(value, f"The header {HEADER}")


def _checked(value: object, name: str) -> str:
    if isinstance(value, str) and 0 < len(value) <= MAX_LENGTH and value.isascii() and value.isprintable():
        return value
    raise BadIdentity(f"{name} holds 1 to {MAX_LENGTH} printable ASCII characters.")
