"""Addresses that a person can click: the service's own, with the chat's signature."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from cubicle import durable, record
from cubicle.core import signing as rules
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.core.paths import encoded
from cubicle.core.signing import Grant, Reach
from cubicle.record import BadRecord
from cubicle.sandbox.lost_found import LostFound

SECRET_FILE = "link-secret"  # noqa: S105 - the name of a file
FRAME_SECONDS = 4 * 3600
"""How long the capability of a page in a frame lasts: who looks at it longer opens it again."""


def kept_secret(data_dir: Path) -> bytes:
    """The secret of this service: made once, readable by its owner only."""
    path = data_dir / SECRET_FILE
    with contextlib.suppress(FileNotFoundError):
        try:
            return _read(path)
        except BadRecord as error:
            LostFound(data_dir).set_aside(path, f"{error}; all links and sign-ins from before end")
    durable.make_folder(data_dir)
    durable.write_once(path, secrets.token_bytes(32))  # another process may be first: then its secret stands
    return _read(path)


def _read(path: Path) -> bytes:
    secret = record.read_bytes(path, 4096)
    if len(secret) < 32:
        raise BadRecord("the secret is too short")
    return secret


class Links:
    """Makes and opens links. With no API key nothing needs a signature, and links carry none.

    `people`: there are tenants without a key, whose people come by OAuth.
    """

    def __init__(
        self,
        secret: bytes,
        base_url: str,
        ring: KeyRing,
        *,
        days: float = 30,
        people: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._secret = secret
        self._ring = ring
        self._days = days
        self._people = people
        self._clock = clock

    @property
    def locked(self) -> bool:
        """Whether anything needs a signature."""
        return bool(self._ring)

    def query(self, chat: Chat, link: str = "") -> str:
        """`?key=…`, or nothing where nothing needs it. `link`: the key that the asker came with, which then is it."""
        return f"?key={link or self.key(chat)}" if self._ring else ""

    def key(self, chat: Chat) -> str:
        return rules.sign(self.signing(chat.tenant), chat, rules.expiry(self._clock(), self._days))

    def opened(self, chat_id: str, key: str) -> Chat | None:
        """The chat of this id that the key opens, or None."""
        return rules.opened(self.opening, chat_id, key, self._clock())

    def capability(self, grant: Grant, link: str = "") -> str:
        """The path segment under /raw/ for this: one for pictures lasts as long as a page, others a few hours.

        None lasts longer than the link that the asker came with.
        """
        now = self._clock()
        expires = rules.expiry(now, 1) if grant.reach is Reach.PICTURES else int(now) + FRAME_SECONDS
        expires = min(expires, rules.end_of(link)) if link else expires
        return rules.capability(self.signing(grant.chat.tenant), grant, expires)

    def opened_capability(self, text: str, path: str) -> Grant | None:
        return rules.opened_capability(self.opening, text, path, self._clock())

    def sign_in(self, tenant: str) -> str:
        """What the cookie of a person who showed the tenant's key holds, for a day or two."""
        return rules.sign_in(self.signing(tenant), tenant, rules.expiry(self._clock(), 1))

    def signed_in(self, cookie: str) -> str | None:
        """The tenant that such a cookie opens, or None."""
        return rules.signed_in(self.opening, cookie, self._clock())

    def file(self, chat: Chat, path: str, link: str = "") -> str:
        return self.files(chat, link)(path)

    def files(self, chat: Chat, link: str = "") -> Callable[[str], str]:
        """`file` for many paths: the chat is signed for once."""
        base, query = self._of("files", chat), self.query(chat, link)
        return lambda path: f"{base}/{quote(encoded(path))}{query}"

    def signing(self, tenant: str) -> bytes:
        """The secret that signs for a tenant."""
        return rules.effective_secret(self._secret, self._ring.keys_of(tenant))

    def opening(self, tenant: str) -> bytes | None:
        """The same; None for a tenant whose keys were all taken away. Tenants of people who come by OAuth have none."""
        return self.signing(tenant) if not self._ring or self._people or self._ring.keys_of(tenant) else None

    def _of(self, page: str, chat: Chat) -> str:
        return f"{self.base_url}/{page}/{quote(chat.id, safe='')}"
