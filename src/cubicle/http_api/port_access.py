"""Who may open a port: a link's token, the cookie that it left, the API key of the tenant; nobody else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import unquote_plus

from cubicle.audit.audit import AuditUnavailable
from cubicle.chat.authentication import read_cookies
from cubicle.chat.key_attempts import KeyAttempts, TooManyAttempts
from cubicle.core import problem as problems
from cubicle.core.caller import Headers
from cubicle.core.chat import DEFAULT_TENANT, Chat
from cubicle.core.cookies import cookie_name
from cubicle.core.origins import SAFE_METHODS
from cubicle.core.port_names import PortName
from cubicle.core.problem import Problem
from cubicle.core.signing import PortGrant, PortRole, end_of
from cubicle.http_api.port_headers import COOKIE, FRAME_COOKIE, KEY_HEADER, PortView
from cubicle.ports.links import PARAMETER, PortLinks
from cubicle.ports.shares import PortShares

_LINKS = (PortRole.LINK, PortRole.SHARE)
_COOKIES = {PortRole.LINK: PortRole.VISIT, PortRole.SHARE: PortRole.GUEST}
_UNKNOWN = Problem(404, "No chat has a port of this name.")
_FOREIGN = Problem(403, "A page of another address may not use this port in your name.")
CLOSED = Problem(
    401,
    "This port is private. Open it by its link from the chat or the workspace, or send the link's key in the header "
    "X-Cubicle-Key.",
)


_EXPIRED = Problem(401, "This link has expired. Open the port by a new one, from the chat or the workspace.")
_REVOKED = Problem(401, "This link was revoked, or another one was made in its place.")


class NotAdmitted(Exception):
    """The visitor may not open the port; `problem` is the answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Admission:
    """A visitor who may open a port."""

    chat: Chat
    by_key: bool = False
    """By the API key, which no page of another address can send."""
    framed: bool = False
    foreign: bool = False
    """A page of another address asks, which has a link: it gets what anybody gets who has that, and none of the
    visitor's cookies goes along."""
    grant: PortGrant | None = None
    """What the link in the URL opens: the visitor gets a cookie for it."""
    token: str = ""
    expires: int | None = None
    """When what let the visitor in ceases to; None for an API key."""
    share: str = ""
    """The share that the visitor came by, if it is a guest."""
    shown: str = ""
    """The token or cookie that let the visitor in."""
    key_id: str = ""
    """Of the API key that did."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What a request shows."""

    name: PortName
    method: str
    """WS for a WebSocket."""
    headers: Headers
    query: bytes
    address: str


LinkUsed = Callable[[Chat, str, str], None]
"""A link was used: the chat, its token, and the address of the visitor. May raise AuditUnavailable."""


class PortAccess:
    """Decides about each request by itself: nothing is remembered of a connection."""

    def __init__(
        self,
        links: PortLinks,
        shares: PortShares,
        keys: KeyAttempts,
        chats: Callable[[], Collection[Chat]],
        used: LinkUsed = lambda chat, token, address: None,
        elsewhere: Callable[[Chat], bool] = lambda chat: False,
    ) -> None:
        """`used` is called when a link opens a port. `elsewhere`: whether another member of the service may have the
        chat, and alone know its shares."""
        self._used = used
        self._elsewhere = elsewhere
        self._links = links
        self._shares = shares
        self._keys = keys
        self._chats = chats

    def admit(self, visit: Visit, view: PortView) -> Admission:
        """Raises NotAdmitted: 401, 403 for a foreign page, 404 for an unknown name, 429.

        Who came by a public link of a chat that is elsewhere is let through to there: ask `enter` before serving it.
        """
        token = _in_query(visit.query)
        if not self._links.locked:
            _require_own_page(visit, view)
            return Admission(self._named(visit.name, DEFAULT_TENANT))
        for sent in filter(None, (token, visit.headers.get(KEY_HEADER.decode()))):
            if (grant := self._grant(sent, visit.name)) is not None and grant.role in _LINKS:
                kept, foreign = grant if sent == token else None, _is_foreign(visit, view)
                return Admission(
                    grant.chat,
                    foreign=foreign,
                    grant=kept,
                    token=sent,
                    expires=end_of(sent),
                    share=grant.share,
                    shown=sent,
                )
        admission = self._by_cookie(visit, view) or self._by_bearer(visit)
        if admission is None:
            raise NotAdmitted(self._refusal(token, visit.name) if token else CLOSED)
        if not admission.by_key:
            _require_own_page(visit, view)
        return admission

    def enter(self, admission: Admission, visit: Visit) -> None:
        """The last word, where the visitor is served: it is asked by the member of the service that has the chat.
        Raises NotAdmitted: 401, 503."""
        grant = self._links.opened(admission.shown) if admission.shown else None
        if admission.shown and (grant is None or (grant.public and not self._shares.holds(grant))):
            raise NotAdmitted(_REVOKED)
        if admission.grant is not None:
            self._tell_used(admission.chat, admission.token, visit.address)

    def _tell_used(self, chat: Chat, token: str, address: str) -> None:
        try:
            self._used(chat, token, address)
        except AuditUnavailable as no:
            raise NotAdmitted(Problem(503, str(no), {"Retry-After": str(no.seconds)})) from None

    def holds(self, admission: Admission, name: PortName) -> Callable[[], bool]:
        """Whether what let a visitor in still does, to be asked again and again."""
        seen = self._version

        def holds() -> bool:
            if self._version == seen:
                return True
            if admission.key_id:
                return self._keys.works(admission.key_id)
            return not admission.shown or self._grant(admission.shown, name) is not None

        return holds

    @property
    def _version(self) -> object:
        return self._keys.version, self._links.version

    def cookies(self, admission: Admission, visit: Visit, view: PortView) -> list[str]:
        """The Set-Cookie lines that let a browser in without the link."""
        grant = admission.grant
        if grant is None:
            return []
        if grant.public and (own := self._by_cookie(visit, view)) is not None and not own.share:
            return []  # who came by a link of the chat's own stays who that is
        left = self._links.seconds_left(admission.token)
        kept = PortGrant(grant.chat, visit.name.port, _COOKIES[grant.role], grant.share, grant.mark)
        token = self._links.token(kept, int(admission.token.partition(".")[0]))
        secure = view.scheme == "https"
        if visit.headers.get("Sec-Fetch-Dest") in ("iframe", "frame", "embed", "object"):
            # Browsers that name a frame take a Secure cookie of localhost, too.
            rest = f"Max-Age={left}; Path=/; HttpOnly; Secure; SameSite=None; Partitioned"
            return [f"{cookie_name(FRAME_COOKIE, secure=secure)}={token}; {rest}"]
        rest = f"Max-Age={left}; Path=/; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
        return [f"{cookie_name(COOKIE, secure=secure)}={token}; {rest}"]

    def _named(self, name: PortName, tenant: str | None = None) -> Chat:
        chat = self._links.find(name, self._chats)
        if chat is None or (tenant is not None and chat.tenant != tenant):
            raise NotAdmitted(_UNKNOWN)
        return chat

    def _grant(self, token: str, name: PortName) -> PortGrant | None:
        grant = self._links.opened(token)
        if grant is None or grant.port not in (0, name.port) or self._links.id(grant.chat) != name.id:
            return None
        return grant if not grant.public or self._shares.holds(grant) or self._elsewhere(grant.chat) else None

    def _refusal(self, token: str, name: PortName) -> Problem:
        """Why the link in the URL does not open the port; what was never a link of it is told nothing more."""
        grant = self._links.opened(token) or self._links.once_opened(token)
        if grant is None or grant.port not in (0, name.port) or self._links.id(grant.chat) != name.id:
            return CLOSED
        return _REVOKED if self._links.seconds_left(token) else _EXPIRED

    def _by_cookie(self, visit: Visit, view: PortView) -> Admission | None:
        jar = read_cookies(visit.headers)
        for cookie in (COOKIE, FRAME_COOKIE):
            value = jar.get(cookie_name(cookie, secure=view.scheme == "https"), "")
            grant = self._grant(value, visit.name) if value else None
            if grant is not None and grant.role not in _LINKS and grant.port == visit.name.port:
                framed = cookie == FRAME_COOKIE
                return Admission(grant.chat, framed=framed, expires=end_of(value), share=grant.share, shown=value)
        return None

    def _by_bearer(self, visit: Visit) -> Admission | None:
        try:
            key = self._keys.shown(visit.headers.get("Authorization"), visit.address)
        except TooManyAttempts as error:
            raise NotAdmitted(problems.too_many_tries(error.seconds)) from None
        if key is None:
            return None
        chat = self._named(visit.name, key.tenant)
        return Admission(chat, by_key=True, key_id=key.id, expires=key.expires)


def _require_own_page(visit: Visit, view: PortView) -> None:
    """A cookie comes along with what a page of another chat asks for: only pages of the same chat may use it."""
    if _is_foreign(visit, view):
        raise NotAdmitted(_FOREIGN)


def _is_foreign(visit: Visit, view: PortView) -> bool:
    """Whether a page of another chat, or of any other site, asks for this by itself.

    Whatever leads a person here is let through: it shows the page to the person, and to nobody else. The answer says
    who may show it in a frame.
    """
    site, mode = visit.headers.get("Sec-Fetch-Site"), visit.headers.get("Sec-Fetch-Mode")
    origin = visit.headers.get("Origin")
    if site in ("same-origin", "none"):
        return False
    if origin is not None and view.sibling_of(origin) is not None:
        return False
    is_led = mode == "navigate" and visit.method in SAFE_METHODS
    return origin is not None or not (site is None or is_led)


def _in_query(query: bytes) -> str:
    for part in query.split(b"&", 100)[:100]:
        name, _, value = part.partition(b"=")
        if name == PARAMETER.encode():
            return unquote_plus(value.decode("latin-1"))
    return ""
