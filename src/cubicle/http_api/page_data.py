"""What a page is told about itself with its HTML. The type of the pages is generated from this."""

from __future__ import annotations

from typing import TypedDict


class PageFacts(TypedDict, total=False):
    """What some pages are given."""

    chat: str
    path: str
    raw: str
    sandbox: str
    embed: bool
    run: bool
    next: str
    message: str
    locked: bool
    issuer: str
    view: bool
    operator: bool
    tenant: str
    opens: str
    card: bool
    signed_in: bool


class PageData(TypedDict):
    """What every page is given with its HTML, as the `data-page` of its body."""

    root: str
    assets: str
    chat: str
    path: str
    raw: str
    sandbox: str
    embed: bool
    run: bool
    next: str
    message: str
    locked: bool
    issuer: str
    """Where people can sign in besides with a key: the host of the OAuth issuer, or nothing."""
    view: bool
    """The person came by a link that only lets one look."""
    operator: bool
    """The person may see every tenant."""
    tenant: str
    """Whose chats the person's own are; on the admin page."""
    opens: str
    """What the link that the person came by opens: `chat`, `replay` or `file`."""
    card: bool
    """It is a card in another site's page."""
    signed_in: bool
    """The person showed a key, and may make links and sign out."""
