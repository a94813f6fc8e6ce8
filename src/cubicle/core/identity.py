"""Who makes a request: the one type that authentication, HTTP, MCP and the log share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cubicle.core.chat import Chat
from cubicle.core.link_scope import WHOLE, LinkScope


class Role(StrEnum):
    """What a caller is to the service."""

    USER = "user"
    """Uses the chats of one tenant."""
    OPERATOR = "operator"
    """Runs the service: sees every tenant."""


class LinkAccess(StrEnum):
    """What a link lets its holder do in the chat."""

    VIEW = "view"
    CONTROL = "control"


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


@dataclass(frozen=True, slots=True)
class Identity:
    """Who it is, what may be entered, and by what."""

    tenant: str
    role: Role = Role.USER
    user: str | None = None
    """The e-mail or subject of the person; None when nobody says who it is, as with a link."""
    key_id: str = ""
    """Of the API key that was shown, or by which the sign-in or link was made; never the key itself."""
    chat: Chat | None = None
    """The one chat that the link opens."""
    link: str = ""
    """The link's token."""
    access: LinkAccess = LinkAccess.CONTROL
    """What the link allows; all else may control what it opens."""
    anew: bool = False
    """The link came in the URL, and is to be kept in a cookie."""
    stays: bool = False
    """Or not: the browser is known to another tenant, whose chat of the same id would become this one. The link stays
    in the URL, and the page sends it along."""
    scope: LinkScope = WHOLE
    """Which part of the chat the link opens."""
    card: bool = False
    """It is a card's: pages that are opened by it may stand in a frame of any site."""
    signed_in: bool = False
    expires: int | None = None
    """When what was shown ceases to let anybody in; None: it has no end of its own."""
    person: str = ""
    """The name in chat ids of a person whom an OAuth issuer knows (core/personal_chats.py)."""
    credential: Credential = Credential.COOKIE

    @property
    def public(self) -> bool:
        """Nobody was asked who it is."""
        return self.credential is Credential.PUBLIC

    @property
    def is_operator(self) -> bool:
        return self.role is Role.OPERATOR

    @property
    def log_fields(self) -> dict[str, Any]:
        """For every line of the log that the request causes."""
        fields = {"tenant": self.tenant, "user": self.user, "key_id": self.key_id}
        if self.role is Role.OPERATOR:
            fields["role"] = self.role.value
        return {name: value for name, value in fields.items() if value}
