"""Signatures that let a person open what belongs to one chat, and nothing else.

A key is `<expiry>.<tenant>.<mac>`: seconds since 1970, the tenant, and an HMAC-SHA256 over both and the
chat id. It names the tenant because a clicked link carries no API key that could. A capability is the same
with the chat inside, for addresses under /raw/, which must not depend on cookies or queries. Neither passes
for the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence

from cubicle.rules.chats import BadChatId, Chat

DAY = 86_400
_LONGEST = 1024
_NO_CHAT = "-"
Secrets = Callable[[str], bytes | None]
"""From a tenant to the secret that signs for it; None for one that there is not."""
_MAC_BYTES = 16  # 128 bits cannot be guessed, and six links stand in every prompt


def effective_secret(kept: bytes, keys: Sequence[str]) -> bytes:
    """The secret that signs for a tenant with these API keys: changing them ends every link made before."""
    return hmac.digest(kept, "\0".join(("cubicle links", *(keys or [""]))).encode(), "sha256")


def expiry(now: float, days: float) -> int:
    """The end of the day on which a link made now has lived `days`, so that one day's links are all alike."""
    return (int(now + days * DAY) // DAY + 1) * DAY


def end_of(key: str) -> int:
    """When a key that opened something ceases to."""
    return int(key.partition(".")[0])


def sign(secret: bytes, chat: Chat, expires: int) -> str:
    """The key that opens this chat until then."""
    return f"{expires}.{_encode(chat.tenant)}.{_mac(secret, 'key', chat, expires)}"


def opened(secrets: Secrets, chat_id: str, key: str, now: float) -> Chat | None:
    """The chat of this id that the key opens now, or None."""
    parts = key.split(".") if len(key) <= _LONGEST else []
    if len(parts) != 3:
        return None
    return _checked(secrets, "key", chat_id, _decode(parts[1]), parts[0], parts[2], now)


def capability(secret: bytes, chat: Chat, expires: int) -> str:
    """The one path segment that stands for this chat's files under /raw/."""
    return f"{expires}.{_encode(chat.tenant)}.{_encode(chat.id)}.{_mac(secret, 'raw', chat, expires)}"


def opened_capability(secrets: Secrets, text: str, now: float) -> Chat | None:
    """The chat whose files the capability opens now, or None."""
    parts = text.split(".") if len(text) <= _LONGEST else []
    if len(parts) != 4:
        return None
    chat_id = _decode(parts[2])
    return None if chat_id is None else _checked(secrets, "raw", chat_id, _decode(parts[1]), parts[0], parts[3], now)


def sign_in(secret: bytes, tenant: str, expires: int) -> str:
    """What the cookie of a person who showed the tenant's API key holds."""
    return f"{expires}.{_encode(tenant)}.{_mac(secret, 'login', Chat(_NO_CHAT, tenant), expires)}"


def signed_in(secrets: Secrets, text: str, now: float) -> str | None:
    """The tenant that a cookie of `sign_in` opens now, or None."""
    parts = text.split(".") if len(text) <= _LONGEST else []
    if len(parts) != 3:
        return None
    chat = _checked(secrets, "login", _NO_CHAT, _decode(parts[1]), parts[0], parts[2], now)
    return None if chat is None else chat.tenant


def _checked(
    secrets: Secrets, use: str, chat_id: str, tenant: str | None, expires: str, mac: str, now: float
) -> Chat | None:
    if tenant is None or not (expires.isascii() and expires.isdigit() and len(expires) <= 12) or not mac.isascii():
        return None
    try:
        chat = Chat(chat_id, tenant)
    except BadChatId:
        return None
    secret = secrets(tenant)
    if secret is None or not hmac.compare_digest(mac, _mac(secret, use, chat, int(expires))):
        return None
    return chat if now < int(expires) else None


def _mac(secret: bytes, use: str, chat: Chat, expires: int) -> str:
    text = "\0".join((use, chat.tenant, chat.id, str(expires)))
    return _base64(hmac.new(secret, text.encode(), hashlib.sha256).digest()[:_MAC_BYTES])


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _encode(text: str) -> str:
    return _base64(text.encode())


def _decode(text: str) -> str | None:
    """The text, when this is exactly how `_encode` writes it."""
    try:
        decoded = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeError, ValueError):
        return None
    return decoded if _encode(decoded) == text else None
