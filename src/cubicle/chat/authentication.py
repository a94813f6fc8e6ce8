"""Who makes a request: the one function that HTTP and MCP ask.

A bearer key opens its tenant; a signed link, or its cookie, the chat that it was made for; a sign-in the tenant whose
key the person showed.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import parse_qs

from cubicle.chat.key_attempts import KeyAttempts, TooManyAttempts
from cubicle.chat.links import Links
from cubicle.chat.token_access import TokenAccess
from cubicle.core import caller, hosts, signing
from cubicle.core import problem as problems
from cubicle.core.caller import Headers
from cubicle.core.chat import DEFAULT_TENANT
from cubicle.core.cookies import cookie_name, is_taken
from cubicle.core.identity import Credential, Identity, LinkAccess, Role
from cubicle.core.keys import bearer_key
from cubicle.core.personal_chats import may_enter
from cubicle.core.problem import Problem
from cubicle.core.signing import LinkGrant
from cubicle.oauth.access_tokens import looks_like_token

LOGIN_COOKIE = "cubicle-login"
_MAX_LINK_COOKIES = 100
"""Each is checked by its signature; a browser keeps no more of one site."""
_MAX_PARAMETERS = 100
_HEALTH = "/health"
"""Probes of orchestrators and load balancers ask for it by an address, and it tells nothing that a page could want."""


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
    path: str = ""
    """Of the request, without that prefix."""


class Authentication:
    """The keys, links and sign-ins of one service."""

    def __init__(
        self,
        keys: KeyAttempts,
        links: Links | None = None,
        allowed_hosts: tuple[str, ...] = (),
        metrics_token: str = "",
        *,
        tokens: TokenAccess | None = None,
        origins: tuple[str, ...] = (),
    ) -> None:
        self._keys = keys
        self._metrics_token = metrics_token
        self._links = links
        self._hosts = allowed_hosts
        self._tokens = tokens
        self._origins = origins

    async def admit(self, shown: Shown, who: Who) -> Identity:
        """Who it is, as `authenticate` says; for an OAuth access token its issuer may have to be asked. Raises Refused,
        with 503 when the issuer cannot be."""
        if self._tokens is None:
            return self.authenticate(shown, who)
        token = bearer_key(shown.headers.get("Authorization"))
        try:
            if token is None or not looks_like_token(token) or who in (Who.ANYBODY, Who.CAPABILITY):
                return self.authenticate(shown, who)
            if self._reads_metrics(shown, who):
                return self.authenticate(shown, who)
            self._check_hosts(shown, who)
            found = await self._tokens.identify(token, shown.path)
        except Refused as refused:
            raise Refused(self._tokens.challenged(refused.problem, shown.path)) from None
        if isinstance(found, Problem):
            raise Refused(found)
        return found

    def authenticate(self, shown: Shown, who: Who) -> Identity:
        """Who it is. Raises Refused: 403 for a foreign Host (and Origin, where pages of others may call), 429, 401."""
        if self._reads_metrics(shown, who):  # Prometheus, too, asks pods by their addresses
            return Identity(DEFAULT_TENANT, Role.OPERATOR, credential=Credential.BEARER)
        if shown.path != _HEALTH:
            self._check_hosts(shown, who)
        if who in (Who.ANYBODY, Who.CAPABILITY):
            return Identity(DEFAULT_TENANT, credential=Credential.PUBLIC)
        problem = problems.UNAUTHORIZED
        if who is Who.METRICS and self._metrics_token and not self._keys:
            raise Refused(problem)
        try:
            key = self._keys.shown(shown.headers.get("Authorization"), shown.address)
        except TooManyAttempts as error:
            key, problem = None, problems.too_many_tries(error.seconds)
        if key is not None:
            credential = Credential.BEARER if self._keys else Credential.NONE_NEEDED
            user = caller.email(shown.headers)
            return Identity(key.tenant, key.role, user, key.id, expires=key.expires, credential=credential)
        identity = None if who is Who.BEARER else self._without_key(shown)
        if identity is None:
            raise Refused(problem)
        return identity

    def _reads_metrics(self, shown: Shown, who: Who) -> bool:
        """Whether it is the program that reads the metrics, by its token."""
        if who is not Who.METRICS or not self._metrics_token:
            return False
        key = bearer_key(shown.headers.get("Authorization")) or ""
        return hmac.compare_digest(key.encode("utf-8", "surrogateescape"), self._metrics_token.encode())

    def _check_hosts(self, shown: Shown, who: Who) -> None:
        if not hosts.host_is_known(self._hosts, shown.headers.get("Host")):
            raise Refused(Problem(403, hosts.UNKNOWN_HOST))
        origin = shown.headers.get("Origin")
        if who is not Who.BEARER or (origin and ("*" in self._origins or origin.lower() in self._origins)):
            return
        if not hosts.origin_is_known(self._hosts, origin):
            raise Refused(Problem(403, hosts.UNKNOWN_ORIGIN))

    @property
    def version(self) -> object:
        """Changes when somebody who was let in may no longer be."""
        return (self._keys.version, self._links.version if self._links is not None else None)

    def still_holds(self, identity: Identity) -> bool:
        """Whether what was shown lets in now, too."""
        if identity.credential in (Credential.PUBLIC, Credential.NONE_NEEDED):
            return True
        if identity.chat is not None:
            return self._links is not None and self._links.opened(identity.chat.id, identity.link) is not None
        return not identity.key_id or self._keys.works(identity.key_id)

    def _without_key(self, shown: Shown) -> Identity | None:
        """By a sign-in or a link; what else the request shows does not matter."""
        if self._links is None:
            return None
        known = self._by_cookie(self._links, shown)
        sent = _sent_key(shown.query)
        if sent and shown.chat_id is not None and (grant := self._links.opened(shown.chat_id, sent)):
            by_link = _by_link(self._links, grant, sent)
            if grant.card and shown.headers.get("Sec-Fetch-Dest") != "document":
                # Not in a tab: a page around it would else use what the person may.
                return replace(by_link, stays=True, credential=Credential.LINK)
            other = known is not None and known.tenant != grant.chat.tenant
            # Who may more already is not made less by a link that was clicked.
            may_more = known is not None and not other and known.access is LinkAccess.CONTROL
            if may_more and grant.access is LinkAccess.VIEW and known is not None:
                return replace(known, link=known.link or sent, credential=Credential.LINK)
            if known is not None and not other and (grant.card or not by_link.scope.is_whole):
                return replace(known, link=known.link or sent, credential=Credential.LINK)
            if not by_link.scope.is_whole:  # it is kept in no cookie, where it would replace a link that opens more
                return replace(by_link, stays=True, credential=Credential.LINK)
            return replace(by_link, anew=not other, stays=other, credential=Credential.LINK)
        return known

    def _by_cookie(self, links: Links, shown: Shown) -> Identity | None:
        cookies, chat_id = read_cookies(shown.headers), shown.chat_id
        login = cookie_name(LOGIN_COOKIE, secure=shown.secure, root=shown.root)
        if who := links.signed_in(cookies.get(login, "")):
            user, end = who.user or caller.email(shown.headers), signing.end_of(cookies[login])
            known = Identity(who.tenant, who.role, user, who.key_id, person=who.person, signed_in=True, expires=end)
            if may_enter(known, chat_id or ""):  # what a link opens is open to other people, too
                return known
        if chat_id is None:
            return None
        keys = [value for name, value in cookies.items() if is_taken(name, secure=shown.secure)]
        found = None
        for value in keys[:_MAX_LINK_COOKIES]:
            if grant := links.opened(chat_id, value):
                found = _by_link(links, grant, value)
                if grant.access is LinkAccess.CONTROL:
                    break
        return found


def _by_link(links: Links, grant: LinkGrant, key: str) -> Identity:
    return Identity(
        grant.chat.tenant, chat=grant.chat, link=key, access=grant.access, scope=links.scope(grant), card=grant.card,
        expires=signing.end_of(key),
    )  # fmt: skip


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
