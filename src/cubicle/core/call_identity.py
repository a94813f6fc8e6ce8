"""What a repeated tool call has in common with the first: the client's own key, the id of the model's tool call, or the
MCP session and the id of the request. It counts within one chat of one tenant."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted

from cubicle.core.caller import Headers
from cubicle.core.chat import Chat

HEADER = "Idempotency-Key"
KEYS = ("cubicle/idempotencyKey", "idempotencyKey", "idempotency_key")
"""In `_meta`: a key that the client made for this call, as in the header."""
TOOL_CALLS = ("claudecode/toolUseId", "callId", "toolCallId", "tool_call_id")
"""In `_meta`: how the client names the model's tool call. Some models only number them: then it says nothing."""
MAX_LENGTH = 255
TASK = "task:"
"""How the identity of a task begins that has none of the client's own."""
_TASK_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_KEYED_TASK_ID = re.compile(r"k\.([A-Za-z0-9_-]{1,1400})", re.ASCII)
"""An identity has at most 1,025 bytes: 255 characters, and what it begins with."""
_RANDOM_PART = re.compile(r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[A-Za-z0-9]{16,})\Z", re.ASCII)
_MIN_VARIETY = 8
"""Different characters in the part that is random."""


class BadIdentity(ValueError):
    """The key is none; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """The identity of one call."""

    text: str
    chosen: bool = True
    """The client means it as one, and can come back with it. If not, it is only that of the request."""
    strict: bool = False
    """The client made it as a key: it may hang up and come back, and other arguments under it are an error."""
    session: str = ""
    """The MCP session, if the identity is that of a request in it."""

    def command(self, chat: Chat, arguments_hash: str) -> str:
        """A name of the call, the same on whatever service: that of a strict one is done under it in the sandbox."""
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
        if isinstance(value, str) and len(value) <= MAX_LENGTH and value.isprintable() and _is_random(value):
            return CallIdentity(f"call:{value}")
    if session and request is not None:
        return request_identity(session, request)
    return None


def request_identity(session: str, request: int | str) -> CallIdentity:
    """That of a request of an MCP session."""
    named = request if isinstance(request, int) else quoted(request)
    whole = hashlib.sha256(f"[{quoted(session)}, {named}]".encode()).hexdigest()  # as json.dumps has it
    return CallIdentity(f"request:{whole[:40]}", chosen=False, session=session)


def task_of(identity: str) -> str:
    """The id of the MCP task that a call of this identity runs as."""
    if identity.startswith(TASK):
        return identity.removeprefix(TASK)
    return "k." + base64.urlsafe_b64encode(identity.encode()).decode().rstrip("=")


def task_identity(task: str) -> CallIdentity | None:
    """The identity of the call that runs as the task of this id; None if that is no id of one."""
    if _TASK_ID.fullmatch(task):
        return CallIdentity(f"{TASK}{task}")
    if (match := _KEYED_TASK_ID.fullmatch(task)) is None:
        return None
    try:
        text = base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    return CallIdentity(text) if text.startswith(("key:", "call:")) and task_of(text) == task else None


def _is_random(value: str) -> bool:
    """Whether it ends with so many characters that no two calls have it by chance."""
    found = _RANDOM_PART.search(value)
    return found is not None and len(set(found[0])) >= _MIN_VARIETY


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
