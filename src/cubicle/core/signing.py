"""Tokens that let a person open what belongs to one chat, and nothing else (the format: tokens.py).

Each begins with its end, in seconds since 1970, and names the tenant, because a clicked link carries no API key that
could. The key of a link is bound to a chat that it does not name. A capability names the chat, for addresses under
/raw/, which must not depend on cookies or queries; it says what may be done with the files, and covers the folder that
they must lie in. A token for ports names its role and port. The cookie of a sign-in names the key that was shown.
None of them passes for another. All that lead into a chat have a mark, by which they are revoked.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cubicle.core import tokens
from cubicle.core.chat import BadChatId, Chat
from cubicle.core.identity import LinkAccess, Role
from cubicle.core.paths import encoded

DAY = 86_400
_MAX_LENGTH = 1024
_MAX_PENDING = 3072
_NO_CHAT = "-"
_MARK = r"(?:e([1-9]\d{0,11}))?(?:_([0-9a-f]{16}))?"
_LINK_KIND = re.compile(rf"([vck]){_MARK}", re.ASCII)
_KIND = re.compile(rf"([phs])(\d{{1,4}}){_MARK}", re.ASCII)
_PORT_KIND = re.compile(rf"([lvsg])(0|[1-9]\d{{0,4}})(?:-([0-9a-f]{{16}}))?{_MARK}", re.ASCII)
_ACCESS = {LinkAccess.VIEW: "v", LinkAccess.CONTROL: "c"}
_ROLES = {Role.USER: "u", Role.OPERATOR: "o"}
Secrets = Callable[[str], bytes | None]
"""From a tenant to the secret that signs for it; None for one that there is not."""


def effective_secret(kept: bytes, generation: str) -> bytes:
    """The secret that signs for a tenant whose keys are of this generation: another one ends every link made before."""
    return hmac.digest(kept, f"cubicle links\0{generation}".encode(), "sha256")


def expiry(now: float, days: float) -> int:
    """The end of the day on which a link made now has lived `days`, so that one day's links are all alike."""
    return (int(now + days * DAY) // DAY + 1) * DAY


def end_of(key: str) -> int:
    """When a key that opened something ceases to."""
    return int(key.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Mark:
    """By what a link is revoked: with all of its chat, or by itself."""

    epoch: int = 0
    """Another one with each time that all links of the chat are revoked."""
    id: str = ""
    """Of a link that was made by itself; those of prompts have none."""

    def __str__(self) -> str:
        return (f"e{self.epoch}" if self.epoch else "") + (f"_{self.id}" if self.id else "")

    @classmethod
    def of(cls, epoch: str | None, id: str | None) -> Mark:
        return cls(int(epoch or 0), id or "")


@dataclass(frozen=True, slots=True)
class LinkGrant:
    """What the key of a link opens."""

    chat: Chat
    access: LinkAccess = LinkAccess.VIEW
    mark: Mark = Mark()
    card: bool = False
    """It is for a card in another site's page: whoever shows it only looks, whatever else the browser shows."""


def sign(secret: bytes, grant: LinkGrant, expires: int) -> str:
    """The key that opens this until then."""
    kind = f"{'k' if grant.card else _ACCESS[grant.access]}{grant.mark}"
    return tokens.signed(secret, _context("key", grant.chat), str(expires), _encode(grant.chat.tenant), kind)


def opened(secrets: Secrets, chat_id: str, key: str, now: float) -> LinkGrant | None:
    """What the key opens now of the chat of this id, or None."""
    parts = _parts(key, 4)
    kind = _LINK_KIND.fullmatch(parts[2]) if parts else None
    if kind is None:
        return None
    chat = _checked(secrets, "key", chat_id, key, now)
    access = LinkAccess.CONTROL if kind[1] == "c" else LinkAccess.VIEW
    return None if chat is None else LinkGrant(chat, access, Mark.of(kind[2], kind[3]), kind[1] == "k")


def mark_of(key: str) -> Mark:
    """The mark of a link's key that opened something."""
    kind = _LINK_KIND.fullmatch(key.split(".")[2])
    return Mark() if kind is None else Mark.of(kind[2], kind[3])


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
    mark: Mark = Mark()


def capability(secret: bytes, grant: Grant, expires: int) -> str:
    """The one path segment under /raw/ before the paths of the files that it opens, each with the folder."""
    depth = len(grant.folder.split("/")) if grant.folder else 0
    chat, kind = grant.chat, f"{grant.reach}{depth}{grant.mark}"
    context = _context(_use(grant.folder), chat)
    return tokens.signed(secret, context, str(expires), _encode(chat.tenant), _encode(chat.id), kind)


def opened_capability(secrets: Secrets, text: str, path: str, now: float) -> Grant | None:
    """What the capability grants now for the file of this path, which was checked; None when it does not open it.

    The folder is not in the capability but the beginning of the path: under any other folder the signature is wrong.
    """
    parts = _parts(text, 5)
    kind = _KIND.fullmatch(parts[3]) if parts else None
    if kind is None:
        return None
    reach, depth = Reach(kind[1]), int(kind[2])
    names = path.split("/")
    chat_id = _decode(parts[2])
    if len(names) <= depth or chat_id is None:
        return None
    folder = "/".join(names[:depth])
    chat = _checked(secrets, _use(folder), chat_id, text, now)
    return None if chat is None else Grant(chat, reach, folder, Mark.of(kind[3], kind[4]))


def _use(folder: str) -> str:
    return f"raw\0{folder}"


@dataclass(frozen=True, slots=True)
class SignIn:
    """Who a person showed to be."""

    tenant: str
    role: Role = Role.USER
    key_id: str = ""
    """Of the key that was shown; empty for a sign-in elsewhere."""
    user: str = ""
    person: str = ""
    """The name in chat ids of a person whom an OAuth issuer knows."""


def sign_in(secret: bytes, who: SignIn, expires: int) -> str:
    """What the cookie of a person who signed in holds."""
    fields = _sign_in_fields(who)
    return tokens.signed(secret, _context("login", Chat(_NO_CHAT, who.tenant)), str(expires), *fields)


def signed_in(secrets: Secrets, text: str, now: float) -> SignIn | None:
    """Who the cookie of `sign_in` says it is, or None."""
    return _sign_in(secrets, "login", text, now)


def pending(secret: bytes, fields: Sequence[str], expires: int) -> str:
    """What the cookie of a browser holds that is on its way to sign in elsewhere."""
    return tokens.signed(secret, ("pending sign-in",), str(expires), *map(_encode, fields))


def opened_pending(secret: bytes, text: str, now: float) -> list[str] | None:
    """The fields that such a cookie holds, or None."""
    parts = text.split(tokens.SEPARATOR) if len(text) <= _MAX_PENDING else []
    if len(parts) < 3 or not parts[0].isdecimal() or not tokens.is_signed(secret, ("pending sign-in",), text):
        return None
    fields = [field for part in parts[1:-1] if (field := _decode(part)) is not None]
    return fields if now < int(parts[0]) and len(fields) == len(parts) - 2 else None


def one_time(secret: bytes, who: SignIn, id: str, expires: int) -> str:
    """A token by which a browser is signed in once: `id` tells whether it was used."""
    fields = _sign_in_fields(who)
    return tokens.signed(secret, _context(f"once\0{id}", Chat(_NO_CHAT, who.tenant)), str(expires), *fields) + f"~{id}"


def opened_one_time(secrets: Secrets, text: str, now: float) -> tuple[SignIn, str] | None:
    """Who it signs in, and its id."""
    token, _, id = text.rpartition("~")
    who = _sign_in(secrets, f"once\0{id}", token, now) if re.fullmatch("[0-9a-f]{32}", id) else None
    return None if who is None else (who, id)


def _sign_in_fields(who: SignIn) -> tuple[str, ...]:
    return (_encode(who.tenant), _ROLES[who.role], *map(_encode, (who.key_id, who.user, who.person)))


def _sign_in(secrets: Secrets, use: str, text: str, now: float) -> SignIn | None:
    parts = _parts(text, 7)
    key_id, user, person = map(_decode, parts[3:6]) if parts else (None, None, None)
    if key_id is None or user is None or person is None or parts[2] not in _ROLES.values():
        return None
    chat = _checked(secrets, use, _NO_CHAT, text, now)
    role = Role.OPERATOR if parts[2] == "o" else Role.USER
    return None if chat is None else SignIn(chat.tenant, role, key_id, user, person)


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
    mark: Mark = Mark()

    @property
    def public(self) -> bool:
        return self.role in (PortRole.SHARE, PortRole.GUEST)

    @property
    def kind(self) -> str:
        return f"{self.role}{self.port}{'-' + self.share if self.share else ''}{self.mark}"


def port_id(kept: bytes, chat: Chat) -> str:
    """What stands for the chat in the names of its ports. Whoever knows the chat id cannot tell it.

    It does not depend on the API keys: a bookmark outlives a change of keys, and only asks to be let in again.
    """
    return hmac.digest(kept, encoded("\0".join(("cubicle ports", chat.tenant, chat.id))), "sha256")[:16].hex()


def port_token(secret: bytes, grant: PortGrant, expires: int) -> str:
    chat = grant.chat
    fields = (str(expires), _encode(chat.tenant), _encode(chat.id), grant.kind)
    return tokens.signed(secret, _context("port", chat), *fields)


def opened_port(secrets: Secrets, token: str, now: float) -> PortGrant | None:
    """What the token opens now, or None."""
    parts = _parts(token, 5)
    kind = _PORT_KIND.fullmatch(parts[3]) if parts else None
    chat_id = _decode(parts[2]) if kind is not None else None
    if kind is None or chat_id is None or int(kind[2]) > 65535:
        return None
    chat = _checked(secrets, "port", chat_id, token, now)
    mark = Mark.of(kind[4], kind[5])
    return None if chat is None else PortGrant(chat, int(kind[2]), PortRole(kind[1]), kind[3] or "", mark)


def _parts(token: str, count: int) -> list[str]:
    """The parts of a token that has so many; nothing of another."""
    parts = token.split(tokens.SEPARATOR) if len(token) <= _MAX_LENGTH else []
    return parts if len(parts) == count else []


def _context(use: str, chat: Chat) -> tuple[str, ...]:
    return (use, chat.tenant, chat.id)


def _checked(secrets: Secrets, use: str, chat_id: str, token: str, now: float) -> Chat | None:
    """The chat of this id that the token is for; its first two parts are its end and the tenant."""
    expires, encoded_tenant, *_ = token.split(tokens.SEPARATOR)
    tenant = _decode(encoded_tenant)
    if tenant is None or not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
        return None
    try:
        chat = Chat(chat_id, tenant)
    except BadChatId:
        return None
    secret = secrets(tenant)
    if secret is None or not tokens.is_signed(secret, _context(use, chat), token):
        return None
    return chat if now < int(expires) else None


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
