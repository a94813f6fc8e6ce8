"""Signatures that let a person open what belongs to one chat, and nothing else.

A key is `<expiry>.<tenant>.<mac>`: seconds since 1970, the tenant, and an HMAC-SHA256 over both and the
chat id. It names the tenant because a clicked link carries no API key that could. A capability is the same
with the chat inside, for addresses under /raw/, which must not depend on cookies or queries; it says what may
be done with the files, and covers the folder that they must lie in. A token for ports names its role and port.
None of them passes for another.
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
_PORT_KIND = re.compile(r"([lvsg])(0|[1-9]\d{0,4})(?:-([0-9a-f]{16}))?", re.ASCII)
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


class PortRole(StrEnum):
    """By what somebody may open a port."""

    LINK = "l"
    """A link that a person of the chat was given; for port 0 it opens every port."""
    VISIT = "v"
    """The cookie that such a link left, on the name of one port."""
    SHARE = "s"
    """A public link: it works for as long as its share is not revoked."""
    GUEST = "g"
    """The cookie that a public link left."""


@dataclass(frozen=True, slots=True)
class PortGrant:
    """What a token for ports opens."""

    chat: Chat
    port: int
    """0: every port."""
    role: PortRole
    share: str = ""
    """The id of the share, of the public roles."""

    @property
    def public(self) -> bool:
        return self.role in (PortRole.SHARE, PortRole.GUEST)

    @property
    def kind(self) -> str:
        return f"{self.role}{self.port}{'-' + self.share if self.share else ''}"


def port_id(kept: bytes, chat: Chat) -> str:
    """What stands for the chat in the names of its ports. Whoever knows the chat id cannot tell it.

    It does not depend on the API keys: a bookmark outlives a change of keys, and only asks to be let in again.
    """
    return hmac.digest(kept, encoded("\0".join(("cubicle ports", chat.tenant, chat.id))), "sha256")[:16].hex()


def port_token(secret: bytes, grant: PortGrant, expires: int) -> str:
    chat = grant.chat
    mac = _mac(secret, f"port\0{grant.kind}", chat, expires)
    return f"{expires}.{_encode(chat.tenant)}.{_encode(chat.id)}.{grant.kind}.{mac}"


def opened_port(secrets: Secrets, token: str, now: float) -> PortGrant | None:
    """What the token opens now, or None."""
    parts = token.split(".") if len(token) <= _MAX_LENGTH else []
    kind = _PORT_KIND.fullmatch(parts[3]) if len(parts) == 5 else None
    chat_id = _decode(parts[2]) if kind is not None else None
    if kind is None or chat_id is None or int(kind[2]) > 65535:
        return None
    chat = _checked(secrets, f"port\0{parts[3]}", chat_id, _decode(parts[1]), parts[0], parts[4], now)
    return None if chat is None else PortGrant(chat, int(kind[2]), PortRole(kind[1]), kind[3] or "")


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
