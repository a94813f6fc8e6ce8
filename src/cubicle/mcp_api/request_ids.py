"""Sessions whose client gives several requests one id, which MCP forbids: there the id tells no calls apart."""

from __future__ import annotations

from cubicle.mcp_api.sessions import SessionNotes


class RequestIds:
    """What is known of the ids in the sessions of late."""

    def __init__(self) -> None:
        self._last: SessionNotes[tuple[int | str, str]] = SessionNotes()
        self._reused: SessionNotes[bool] = SessionNotes()

    def note(self, tenant: str, session: str, id: int | str, method: str) -> None:
        """A request came."""
        before = self._last.get(tenant, session)
        if before is not None and before[0] == id and before[1] != method:
            self.note_reuse(tenant, session)
        self._last.put(tenant, session, (id, method))

    def note_reuse(self, tenant: str, session: str) -> None:
        """Two different requests had one id."""
        if session:
            self._reused.put(tenant, session, True)

    def are_unique(self, tenant: str, session: str) -> bool:
        return self._reused.get(tenant, session) is None
