"""Sessions whose client gives several requests one id, which MCP forbids: there the id tells no calls apart."""

from __future__ import annotations

from cubicle.mcp_api.sessions import SessionNotes

_MAX_LENGTH = 100


class RequestIds:
    """What is known of the ids in the sessions of late."""

    def __init__(self) -> None:
        self._last: SessionNotes[tuple[int | str, int | str]] = SessionNotes()
        self._reused: SessionNotes[bool] = SessionNotes()

    def note(self, tenant: str, session: str, id: int | str, method: str) -> None:
        """A request came."""
        now, before = (_brief(id), _brief(method)), self._last.get(tenant, session)
        if before is not None and before[0] == now[0] and before[1] != now[1]:
            self.note_reuse(tenant, session)
        self._last.put(tenant, session, now)

    def note_reuse(self, tenant: str, session: str) -> None:
        """Two different requests had one id."""
        if session:
            self._reused.put(tenant, session, True)

    def are_unique(self, tenant: str, session: str) -> bool:
        return self._reused.get(tenant, session) is None


def _brief(text: int | str) -> int | str:
    """The same, or what stands for it: a client chooses its length, and it is kept for as long as its session is."""
    return text if isinstance(text, int) or len(text) <= _MAX_LENGTH else hash(text)
