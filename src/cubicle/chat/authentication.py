"""Who makes a request: the one function that HTTP and MCP ask.

A bearer key opens its tenant; a signed link, or its cookie, the chat that it was made for; a sign-in the tenant whose
key the person showed.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs

from cubicle.chat.key_attempts import KeyAttempts, TooManyAttempts
from cubicle.chat.links import Links
from cubicle.core import hosts
from cubicle.core import problem as problems
from cubicle.core.caller import Headers
from cubicle.core.chat import DEFAULT_TENANT, Chat
from cubicle.core.cookies import cookie_name, is_taken
from cubicle.core.keys import bearer_key
from cubicle.core.problem import Problem

LOGIN_COOKIE = "cubicle-login"
_MAX_LINK_COOKIES = 100
"""Each is checked by its signature; a browser keeps no more of one site."""
_MAX_PARAMETERS = 100


class Who(StrEnum):
    """Who may use a route."""

    ANYBODY = "anybody"
    CAPABILITY = "capability"
    """Whoever has the URL: its path carries the capability, which the route checks."""
    BEARER = "key"
    """A key in the Authorization header, and nothing else."""
    KEY = "key, sign-in"
    """A key, or the cookie of a person who showed it."""
    OPERATOR = "operator's key, sign-in"
    """The same with MCP_API_KEY: a customer's key does not do."""
    METRICS = "operator's key, sign-in, METRICS_TOKEN"
    """The same, or the token that a program shows which reads the metrics."""
    CHAT = "key, sign-in, link"
    """The same, or a signed link of the chat, or the cookie that it left."""


class Credential(StrEnum):
    """By what a request was let in."""

    BEARER = "bearer"
    """A key in the Authorization header: no link and no element of a page can send it."""
    LINK = "link"
    """The signature in the URL."""
    COOKIE = "cookie"
    """A browser sends it with every request to the service."""
    NONE_NEEDED = "none needed"
    """The service has no key."""
    PUBLIC = "public"
    """The route asks for none, or nothing was let in."""


class Refused(Exception):
    """The request is not let in; `problem` is the answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request shows of itself."""

    headers: Headers
    address: str
    """Of the client."""
    query: bytes = b""
    chat_id: str | None = None
    """The chat in whose URLs the request is."""
    secure: bool = False
    """It came by HTTPS."""
    root: str = ""
    """The path prefix of the service."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request may enter, and by what."""

    tenant: str
    chat: Chat | None = None
    """The one chat that the link opens."""
    link: str = ""
    anew: bool = False
    """The link came in the URL, and is to be kept in a cookie."""
    stays: bool = False
    """Or not: the browser is known to another tenant, whose chat of the same id would become this one. The link stays
    in the URL, and the page sends it along."""
    signed_in: bool = False
    credential: Credential = Credential.COOKIE

    @property
    def public(self) -> bool:
        """Nobody was asked who it is."""
        return self.credential is Credential.PUBLIC


class Authentication:
    """The keys, links and sign-ins of one service."""

    def __init__(
        self,
        keys: KeyAttempts,
        links: Links | None = None,
        allowed_hosts: tuple[str, ...] = (),
        metrics_token: str = "",
    ) -> None:
        self._keys = keys
        self._metrics_token = metrics_token
        self._links = links
        self._hosts = allowed_hosts

    def authenticate(self, shown: Shown, who: Who) -> Identity:
        """Who it is. Raises Refused: 403 for a foreign Host (and Origin, where pages of others may call), 429, 401."""
        if not hosts.host_is_known(self._hosts, shown.headers.get("Host")):
            raise Refused(Problem(403, hosts.UNKNOWN_HOST))
        if who in (Who.ANYBODY, Who.CAPABILITY):
            return Identity(DEFAULT_TENANT, credential=Credential.PUBLIC)
        if who is Who.BEARER and not hosts.origin_is_known(self._hosts, shown.headers.get("Origin")):
            raise Refused(Problem(403, hosts.UNKNOWN_ORIGIN))
        problem = problems.UNAUTHORIZED
        if who is Who.METRICS and self._metrics_token:
            if _is_token(self._metrics_token, shown.headers.get("Authorization")):
                return Identity(DEFAULT_TENANT, credential=Credential.BEARER)
            if not self._keys:
                raise Refused(problem)
        try:
            tenant = self._keys.tenant(shown.headers.get("Authorization"), shown.address)
        except TooManyAttempts as error:
            tenant, problem = None, problems.too_many_tries(error.seconds)
        if tenant is not None:
            return Identity(tenant, credential=Credential.BEARER if self._keys else Credential.NONE_NEEDED)
        identity = None if who is Who.BEARER else self._without_key(shown)
        if identity is None:
            raise Refused(problem)
        return identity

    def _without_key(self, shown: Shown) -> Identity | None:
        """By a sign-in or a link; what else the request shows does not matter."""
        if self._links is None:
            return None
        known = self._by_cookie(self._links, shown)
        sent = _sent_key(shown.query)
        if sent and shown.chat_id is not None and (chat := self._links.opened(shown.chat_id, sent)):
            other = known is not None and known.tenant != chat.tenant
            return Identity(chat.tenant, chat, sent, anew=not other, stays=other, credential=Credential.LINK)
        return known

    def _by_cookie(self, links: Links, shown: Shown) -> Identity | None:
        cookies, chat_id = read_cookies(shown.headers), shown.chat_id
        login = cookie_name(LOGIN_COOKIE, secure=shown.secure, root=shown.root)
        if signed_in := links.signed_in(cookies.get(login, "")):
            return Identity(signed_in, signed_in=True)
        if chat_id is None:
            return None
        keys = [value for name, value in cookies.items() if is_taken(name, secure=shown.secure)]
        for value in keys[:_MAX_LINK_COOKIES]:
            if chat := links.opened(chat_id, value):
                return Identity(chat.tenant, chat, value)
        return None


def _is_token(token: str, authorization: str | None) -> bool:
    shown = bearer_key(authorization) or ""
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token.encode())


def _sent_key(query: bytes) -> str:
    """The link's key in the query, of the first hundred parameters."""
    if b"key=" not in query:
        return ""
    first = "&".join(query.decode("latin-1").split("&", _MAX_PARAMETERS)[:_MAX_PARAMETERS])
    return parse_qs(first).get("key", [""])[0]


def read_cookies(headers: Headers) -> dict[str, str]:
    """Cookies by name, the first of each. The service's own need no unquoting."""
    jar: dict[str, str] = {}
    for header in headers.all("Cookie"):
        for pair in header.split(";"):
            name, _, value = pair.partition("=")
            jar.setdefault(name.strip(), value.strip())
    return jar
