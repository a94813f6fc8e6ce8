"""MCP session ids: minted, echoed, ended. Nothing else hangs on them, so any id that nobody ended is good."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from typing import Generic, TypeVar

HEADER = "Mcp-Session-Id"
MAX_OF_A_TENANT = 10_000
MAX_OF_ALL = 40_000
_CARDS = "-ui"

Note = TypeVar("Note")


class SessionNotes(Generic[Note]):
    """A note about each of the sessions used last. A tenant that uses very many takes no place from others."""

    def __init__(self) -> None:
        self._tenants: dict[str, OrderedDict[str, Note]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, tenant: str, session: str) -> Note | None:
        known = self._tenants.get(tenant)
        if known is None or session not in known:
            return None
        known.move_to_end(session)
        return known[session]

    def put(self, tenant: str, session: str, note: Note) -> None:
        known = self._tenants.setdefault(tenant, OrderedDict())
        self._count += session not in known
        known[session] = note
        known.move_to_end(session)
        if len(known) > MAX_OF_A_TENANT:
            self._drop_oldest(tenant)
        while self._count > MAX_OF_ALL:
            self._drop_oldest(max(self._tenants, key=lambda one: len(self._tenants[one])))

    def _drop_oldest(self, tenant: str) -> None:
        known = self._tenants[tenant]
        known.popitem(last=False)
        self._count -= 1
        if not known:
            del self._tenants[tenant]


class McpSessions:
    """The ids that were ended, as many as are worth remembering."""

    def __init__(self) -> None:
        self._ended: SessionNotes[bool] = SessionNotes()

    @staticmethod
    def mint(*, cards: bool = False) -> str:
        """`cards`: the client said that it shows them. The id says so from then on: nothing is kept of a session."""
        return f"{uuid.uuid4()}{_CARDS if cards else ''}"

    def end(self, tenant: str, session: str) -> None:
        self._ended.put(tenant, session, True)

    def is_ended(self, tenant: str, session: str) -> bool:
        return self._ended.get(tenant, session) is not None


def has_cards(session: str) -> bool:
    """Whether the client of this session shows cards (ui_cards.py)."""
    return session.endswith(_CARDS)


def is_wellformed(session: str) -> bool:
    """Visible ASCII of bounded length, as the protocol asks: it is echoed in a header."""
    return 0 < len(session) <= 128 and session.isascii() and session.isprintable() and " " not in session
