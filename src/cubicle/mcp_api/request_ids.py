"""Sessions whose client gives several requests one id, which MCP forbids: there the id tells no calls apart."""

from __future__ import annotations

from collections import OrderedDict

_REMEMBERED = 10_000


class RequestIds:
    """What is known of the ids in the sessions of late."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], tuple[int | str, str]] = OrderedDict()
        self._reused: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, tenant: str, session: str, id: int | str, method: str) -> None:
        """A request came."""
        key = (tenant, session)
        before = self._last.get(key)
        if before is not None and before[0] == id and before[1] != method:
            self.note_reuse(tenant, session)
        self._last[key] = (id, method)
        self._last.move_to_end(key)
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)

    def note_reuse(self, tenant: str, session: str) -> None:
        """Two different requests had one id."""
        if session:
            self._reused[tenant, session] = None
            self._reused.move_to_end((tenant, session))
            while len(self._reused) > _REMEMBERED:
                self._reused.popitem(last=False)

    def are_unique(self, tenant: str, session: str) -> bool:
        return (tenant, session) not in self._reused
