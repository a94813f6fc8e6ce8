"""Signatures that let a person open what belongs to one chat, and nothing else.

A key is `<expiry>.<tenant>.<mac>`: seconds since 1970, the tenant, and an HMAC-SHA256 over both and the
chat id. It names the tenant because a clicked link carries no API key that could. A capability is the same
with the chat inside, for addresses under /raw/, which must not depend on cookies or queries; it says what may
be done with the files, and covers the folder that they must lie in. Neither passes for the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cubicle.core.chat import BadChatId, Chat
from cubicle.core.paths import encoded

DAY = 86_400
_MAX_LENGTH = 1024
_NO_CHAT = "-"
_KIND = re.compile(r"([phs])(\d{1,4})", re.ASCII)
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
    parts = key.split(".") if len(key) <= _MAX_LENGTH else []
    if len(parts) != 3:
        return None
    return _checked(secrets, "key", chat_id, _decode(parts[1]), parts[0], parts[2], now)


class Reach(StrEnum):
    """What a capability lets a browser do with the files that it opens."""

    PICTURES = "p"
    """Show pictures, in the service's own viewers."""
    PAGE = "h"
    """Show a page without its scripts."""
    SCRIPTS = "s"
    """Show a page and run its scripts."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a capability opens: the files of a chat below a folder; an empty folder is all of them."""

    chat: Chat
    reach: Reach
    folder: str = ""


def capability(secret: bytes, grant: Grant, expires: int) -> str:
    """The one path segment under /raw/ before the paths of the files that it opens, each with the folder."""
    depth = len(grant.folder.split("/")) if grant.folder else 0
    chat, use = grant.chat, _use(grant.reach, grant.folder)
    return (
        f"{expires}.{_encode(chat.tenant)}.{_encode(chat.id)}.{grant.reach}{depth}.{_mac(secret, use, chat, expires)}"
    )


def opened_capability(secrets: Secrets, text: str, path: str, now: float) -> Grant | None:
    """What the capability grants now for the file of this path, which was checked; None when it does not open it.

    The folder is not in the capability but the beginning of the path: under any other folder the signature is wrong.
    """
    parts = text.split(".") if len(text) <= _MAX_LENGTH else []
    kind = _KIND.fullmatch(parts[3]) if len(parts) == 5 else None
    if kind is None:
        return None
    reach, depth = Reach(kind[1]), int(kind[2])
    names = path.split("/")
    if len(names) <= depth:
        return None
    folder, chat_id = "/".join(names[:depth]), _decode(parts[2])
    if chat_id is None:
        return None
    chat = _checked(secrets, _use(reach, folder), chat_id, _decode(parts[1]), parts[0], parts[4], now)
    return None if chat is None else Grant(chat, reach, folder)


def _use(reach: Reach, folder: str) -> str:
    return f"raw\0{reach}\0{folder}"


def sign_in(secret: bytes, tenant: str, expires: int) -> str:
    """What the cookie of a person who showed the tenant's API key holds."""
    return f"{expires}.{_encode(tenant)}.{_mac(secret, 'login', Chat(_NO_CHAT, tenant), expires)}"


def signed_in(secrets: Secrets, text: str, now: float) -> str | None:
    """The tenant that a cookie of `sign_in` opens now, or None."""
    parts = text.split(".") if len(text) <= _MAX_LENGTH else []
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
    return _base64(hmac.new(secret, encoded(text), hashlib.sha256).digest()[:_MAC_BYTES])


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
