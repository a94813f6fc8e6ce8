"""What a coding agent shows instead of a key: a pass for one chat and one run, worth nothing outside the sandbox."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from dataclasses import dataclass

from cubicle.rules.chats import Chat

_LONGEST = 4096
_PREFIX = "cubicle-"


@dataclass(frozen=True, slots=True)
class Pass:
    """Which run it is, until when it may call out, and which MCP servers it was given."""

    run: str
    expires: int
    servers: tuple[str, ...] = ()


def signing_key(secret: bytes) -> bytes:
    """A key of its own for passes: none is a link, and no link is a pass."""
    return hmac.digest(secret, b"cubicle agent passes", "sha256")


def issue(key: bytes, chat: Chat, given: Pass) -> str:
    """The text that the agent carries."""
    claims = json.dumps([given.run, given.expires, *given.servers], separators=(",", ":")).encode()
    body = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    return f"{_PREFIX}{body}.{_mac(key, chat, body)}"


def check(key: bytes, chat: Chat, text: str, now: float) -> Pass | None:
    """The pass, if it was issued for this chat and has not run out."""
    body, _, mac = text.removeprefix(_PREFIX).partition(".")
    if len(text) > _LONGEST or not text.isascii() or not hmac.compare_digest(mac, _mac(key, chat, body)):
        return None
    try:
        run, expires, *servers = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError):
        return None
    return Pass(run, expires, tuple(servers)) if now < expires else None


def _mac(key: bytes, chat: Chat, body: str) -> str:
    return hmac.new(key, f"{chat.digest}\0{body}".encode(), "sha256").hexdigest()
