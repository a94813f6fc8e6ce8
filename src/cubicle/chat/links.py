"""Addresses that a person can click: the service's own, with the chat's signature."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from cubicle import durable, record
from cubicle.chat.link_store import LinkStore, MadeLink
from cubicle.core import signing as rules
from cubicle.core.chat import Chat
from cubicle.core.identity import LinkAccess
from cubicle.core.keys import KeyRing
from cubicle.core.link_scope import WHOLE, LinkScope, Opens
from cubicle.core.paths import encoded
from cubicle.core.signing import Grant, LinkGrant, Mark, Reach, SignIn
from cubicle.record import BadRecord
from cubicle.sandbox.lost_found import LostFound

SECRET_FILE = "link-secret"  # noqa: S105 - the name of a file
FRAME_SECONDS = 4 * 3600
"""How long the capability of a page in a frame lasts: who looks at it longer opens it again."""
CARD_SECONDS = 900
"""How long the key of a card lasts: chat clients and gateways may keep what they read, and show it to others."""


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
    """Makes and opens links. With no API key nothing needs a signature, and links carry none."""

    def __init__(
        self,
        secret: bytes,
        base_url: str,
        ring: KeyRing,
        *,
        days: float = 30,
        store: LinkStore | None = None,
        prompt_access: LinkAccess = LinkAccess.VIEW,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.store = store or LinkStore(clock=clock)
        self.prompt_access = prompt_access
        """What the links in prompts allow."""
        self._secret = secret
        self._ring = ring
        self._days = days
        self._clock = clock

    @property
    def locked(self) -> bool:
        """Whether anything needs a signature."""
        return bool(self._ring)

    def query(self, chat: Chat, link: str = "", access: LinkAccess = LinkAccess.VIEW) -> str:
        """`?key=…`, or nothing where nothing needs it. `link`: the key that the asker came with, which then is it."""
        return f"?key={link or self.key(chat, access)}" if self._ring else ""

    def key(self, chat: Chat, access: LinkAccess = LinkAccess.VIEW) -> str:
        """The key that all links of one day have which nobody made by hand."""
        grant = LinkGrant(chat, access, self.store.mark(chat))
        return rules.sign(self.signing(chat.tenant), grant, rules.expiry(self._clock(), self._days))

    def card_key(self, chat: Chat) -> tuple[str, int]:
        """The key for cards of the chat in other sites' pages, and when it ends: soon. Those of one minute are alike.
        Without an API key nothing needs it, and it is empty."""
        expires = (int(self._clock()) + CARD_SECONDS) // 60 * 60
        grant = LinkGrant(chat, LinkAccess.VIEW, self.store.mark(chat), card=True)
        return (rules.sign(self.signing(chat.tenant), grant, expires) if self._ring else ""), expires

    def scope(self, grant: LinkGrant) -> LinkScope:
        """Which part of the chat a link that holds opens."""
        return self.store.scope(grant.chat, grant.mark)

    def made(
        self, chat: Chat, access: LinkAccess, hours: float, label: str = "", scope: LinkScope = WHOLE
    ) -> tuple[MadeLink, str]:
        """A link by itself, which can be revoked by itself, and its key. Blocks. Raises TooManyLinks."""
        made = self.store.add(chat, access, label, int(self._clock() + hours * 3600), scope)
        grant = LinkGrant(chat, access, self.store.mark(chat, made.id))
        return made, rules.sign(self.signing(chat.tenant), grant, made.expires)

    def opened(self, chat_id: str, key: str) -> LinkGrant | None:
        """What the key opens of the chat of this id, or None."""
        grant = rules.opened(self.opening, chat_id, key, self._clock())
        return grant if grant is not None and self.store.holds(grant.chat, grant.mark) else None

    def capability(self, grant: Grant, link: str = "") -> str:
        """The path segment under /raw/ for this: one for pictures lasts as long as a page, others a few hours.

        None lasts longer than the link that the asker came with.
        """
        now = self._clock()
        expires = rules.expiry(now, 1) if grant.reach is Reach.PICTURES else int(now) + FRAME_SECONDS
        expires = min(expires, rules.end_of(link)) if link else expires
        marked = replace(grant, mark=self.mark(grant.chat, link))
        return rules.capability(self.signing(grant.chat.tenant), marked, expires)

    def opened_capability(self, text: str, path: str) -> Grant | None:
        grant = rules.opened_capability(self.opening, text, path, self._clock())
        return grant if grant is not None and self.store.holds(grant.chat, grant.mark) else None

    def mark(self, chat: Chat, link: str = "") -> Mark:
        """What a token carries that is given to somebody who came with this link, or with none."""
        return rules.mark_of(link) if link else self.store.mark(chat)

    def sign_in(self, who: SignIn, expires: int | None = None) -> str:
        """What the cookie of a person who signed in holds, for a day or two."""
        key = self._ring.of_id(who.key_id)
        ends = [rules.expiry(self._clock(), 1), expires, key.expires if key is not None else None]
        return rules.sign_in(self._for_sign_ins(who.tenant), who, min(end for end in ends if end is not None))

    def signed_in(self, cookie: str) -> SignIn | None:
        """Who such a cookie says it is, for as long as the key works that was shown."""
        who = rules.signed_in(self._for_sign_ins, cookie, self._clock()) if cookie else None
        return who if who is not None and self.is_known(who) else None

    def is_known(self, who: SignIn) -> bool:
        """Whether a person who signed in so is still let in."""
        if not who.key_id:
            return bool(who.person) and self._ring.external(who.tenant)
        key = self._ring.of_id(who.key_id)
        return key is not None and (key.tenant, key.role) == (who.tenant, who.role)

    def one_time(self, who: SignIn, seconds: float) -> str:
        """The URL of a page that signs a browser in once."""
        token = rules.one_time(self._for_sign_ins(who.tenant), who, secrets.token_hex(16), int(self._clock() + seconds))
        return f"{self.base_url}/login?once={token}"

    def use_one_time(self, token: str) -> SignIn | None:
        """Who the token signs in, the first time that it is used. Blocks."""
        opened = rules.opened_one_time(self._for_sign_ins, token, self._clock())
        if opened is None or not self.is_known(opened[0]):
            return None
        return opened[0] if self.store.use_once(opened[1], rules.end_of(token)) else None

    @property
    def version(self) -> tuple[int, int]:
        """Changes when a key or a link may have been revoked."""
        return self._ring.version, self.store.version

    def file(self, chat: Chat, path: str, link: str = "") -> str:
        return self.files(chat, link)(path)

    def files(self, chat: Chat, link: str = "") -> Callable[[str], str]:
        """`file` for many paths: the chat is signed for once."""
        base, query = self._of("files", chat), self.query(chat, link)
        return lambda path: f"{base}/{quote(encoded(path))}{query}"

    def page(self, chat: Chat, key: str, scope: LinkScope = WHOLE) -> str:
        """The URL of the page that the key of a link opens."""
        if scope.opens is Opens.REPLAY:
            return f"{self._of('replay', chat)}/?key={key}"
        return f"{self._of('preview', chat)}/{quote(encoded(scope.path))}?key={key}"

    def signing(self, tenant: str) -> bytes:
        """The secret that signs for a tenant."""
        return rules.effective_secret(self._secret, self._ring.generation(tenant))

    def opening(self, tenant: str) -> bytes | None:
        """The same; None for a tenant none of whose keys works any more."""
        return self.signing(tenant) if self._ring.has_tenant(tenant) else None

    def _for_sign_ins(self, tenant: str) -> bytes:
        """The secret of what names the key by which it ends: it does not end with another key of the tenant."""
        return rules.effective_secret(self._secret, f"sign-in\0{tenant}")

    def has_tenant(self, tenant: str) -> bool:
        """Whether a key of the tenant works."""
        return self._ring.has_tenant(tenant)

    def _of(self, page: str, chat: Chat) -> str:
        return f"{self.base_url}/{page}/{quote(chat.id, safe='')}"
