"""Addresses of a chat's ports, and the tokens that open them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from time import monotonic, thread_time
from typing import Any
from urllib.parse import urlsplit

from cubicle.chat.links import Links
from cubicle.core import signing
from cubicle.core.chat import Chat
from cubicle.core.hosts import LOOPBACK
from cubicle.core.port_names import LOCAL_DOMAIN, PortName
from cubicle.core.signing import PortGrant, PortRole

PARAMETER = "cubicle-key"
"""The query parameter of a link that holds the token."""
_MAX_KEPT = 4096
_STEPS = (signing.DAY, 3600, 300, 60)
"""Seconds by which the ends of links differ; the first that is at most a seventh of their life."""
_SHORT_SEARCH = 0.001
_REST = 20
"""How many times as long as a search took none begins again, if it took long: names of nothing come by the thousand."""
_NEEDS_DOMAIN = (
    "These addresses open on the machine that the service runs on. To open them from elsewhere, the operator sets "
    "PREVIEW_DOMAIN and points a wildcard DNS name at the service (docs/ports.md)."
)


class PortLinks:
    """Makes names and tokens, and opens them. With no API key nothing needs a token, and links carry none."""

    def __init__(
        self,
        secret: bytes,
        links: Links,
        *,
        domain: str = "",
        port: int = 8081,
        hours: float = 168,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._secret = secret
        self._links = links
        self._hours = hours
        self._clock = clock
        base = urlsplit(links.base_url)
        self._scheme = base.scheme if domain else "http"
        shown = base.port if domain else port
        self._suffix = f".{domain or LOCAL_DOMAIN}{f':{shown}' if shown else ''}"
        self.note = "" if domain or _is_local(base.hostname or "") else _NEEDS_DOMAIN
        """A sentence for people whose browser cannot reach these addresses; empty where all can."""
        self._chats: dict[str, Chat] = {}
        self._search_from = 0.0
        self._ids: dict[Chat, str] = {}
        self._opened: dict[str, PortGrant] = {}
        self._version = links.version

    @property
    def locked(self) -> bool:
        """Whether anybody has to show something."""
        return self._links.locked

    @property
    def version(self) -> object:
        """Changes when a key or a link may have been revoked."""
        return self._links.version

    @property
    def frame_source(self) -> str:
        """The origins of all ports, for a Content-Security-Policy."""
        return f"{self._scheme}://*{self._suffix}"

    def id(self, chat: Chat) -> str:
        found = self._ids.get(chat)
        if found is None:
            found = self._ids[chat] = signing.port_id(self._secret, chat)
            _bound(self._ids)
        return found

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        self._chats.pop(self._ids.pop(chat, ""), None)
        for token in [token for token, grant in self._opened.items() if grant.chat == chat]:
            del self._opened[token]

    def find(self, name: PortName, chats: Callable[[], Collection[Chat]]) -> Chat | None:
        """The one of these chats that has this name's id. Whoever shows a token needs no search: it names the chat."""
        if name.id not in self._chats and monotonic() >= self._search_from:
            began = thread_time()
            known = {chat: id for id, chat in self._chats.items()}
            # Of chats that are gone, nothing is kept.
            self._chats = {known.get(chat) or self.id(chat): chat for chat in chats()}
            took = thread_time() - began
            self._search_from = monotonic() + (_REST * took if took > _SHORT_SEARCH else 0.0)
        return self._chats.get(name.id)

    def origin(self, chat: Chat, port: int | str) -> str:
        return f"{self._scheme}://{port}-{self.id(chat)}{self._suffix}"

    def link(self, chat: Chat, port: int, by: str = "") -> str:
        """The address with a token for a person of the chat, if one is needed. `by`: the link of the chat that the
        person came with; the token works no longer than that, and is revoked with it."""
        grant = PortGrant(chat, port, PortRole.LINK, mark=self._links.mark(chat, by))
        return f"{self.origin(chat, port)}/{self._query(grant, signing.end_of(by) if by else None)}"

    def template(self, chat: Chat) -> str:
        """The same with PORT in place of the number; its token opens every port of the chat."""
        return (
            f"{self.origin(chat, 'PORT')}/{self._query(PortGrant(chat, 0, PortRole.LINK, mark=self._links.mark(chat)))}"
        )

    def public_link(self, chat: Chat, port: int, share: str, expires: int) -> str:
        grant = PortGrant(chat, port, PortRole.SHARE, share)
        return f"{self.origin(chat, port)}/?{PARAMETER}={self.token(grant, expires)}"

    def token(self, grant: PortGrant, expires: int | None = None) -> str:
        until = expires if expires is not None else self.expires
        return signing.port_token(self._links.signing(grant.chat.tenant), grant, until)

    def opened(self, token: str) -> PortGrant | None:
        """What the token opens now, or None. A browser shows the same one with each request: it is checked once."""
        if self._version != self._links.version:  # a key or a link may have been revoked
            self._version = self._links.version
            self._opened.clear()
        grant = self._opened.get(token)
        if grant is not None:
            return grant if self.seconds_left(token) and self._links.has_tenant(grant.chat.tenant) else None
        grant = signing.opened_port(self._links.opening, token, self._clock())
        if grant is not None and not grant.public and not self._links.store.holds(grant.chat, grant.mark):
            return None
        if grant is not None:
            self._opened[token] = grant
            _bound(self._opened)
        return grant

    def once_opened(self, token: str) -> PortGrant | None:
        """What a token opened before it expired."""
        return signing.opened_port(self._links.opening, token, 0.0)

    def seconds_left(self, token: str) -> int:
        """How long a token that opened something still works."""
        return max(0, signing.end_of(token) - int(self._clock()))

    @property
    def expires(self) -> int:
        """Until when a link works that is made now: no longer than it is set, and alike for a while, as prompts are."""
        lifetime = int(self._hours * 3600)
        step = next((step for step in _STEPS if step * 7 <= lifetime), 1)
        return (int(self._clock()) + lifetime) // step * step

    def _query(self, grant: PortGrant, until: int | None = None) -> str:
        expires = self.expires if until is None else min(until, self.expires)
        return f"?{PARAMETER}={self.token(grant, expires)}" if self.locked else ""


def _bound(kept: dict[Any, Any]) -> None:
    """Forget the oldest."""
    if len(kept) > _MAX_KEPT:
        del kept[next(iter(kept))]


def _is_local(host: str) -> bool:
    return host in LOOPBACK or host == "::1" or host.startswith("127.") or host.endswith(f".{LOCAL_DOMAIN}")
