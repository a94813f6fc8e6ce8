"""MCP session ids: minted, echoed, ended. Nothing else hangs on them, so any id that nobody ended is good."""

from __future__ import annotations

import uuid
from collections import OrderedDict

HEADER = "Mcp-Session-Id"
_REMEMBERED = 10_000
_CARDS = "-ui"


class McpSessions:
    """The ids that were ended, as many as are worth remembering."""

    def __init__(self) -> None:
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()

    @staticmethod
    def mint(*, cards: bool = False) -> str:
        """`cards`: the client said that it shows them. The id says so from then on: nothing is kept of a session."""
        return f"{uuid.uuid4()}{_CARDS if cards else ''}"

    def end(self, tenant: str, session: str) -> None:
        self._ended[tenant, session] = None
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def is_ended(self, tenant: str, session: str) -> bool:
        return (tenant, session) in self._ended


def has_cards(session: str) -> bool:
    """Whether the client of this session shows cards (ui_cards.py)."""
    return session.endswith(_CARDS)


def is_wellformed(session: str) -> bool:
    """Visible ASCII of bounded length, as the protocol asks: it is echoed in a header."""
    return 0 < len(session) <= 128 and session.isascii() and session.isprintable() and " " not in session
