"""How many bytes wait for the disk. No tenant takes all the room, and no blob the room of what was done."""

from __future__ import annotations

from collections import Counter

MAX_WAITING = 128 << 20
"""Bytes of all tenants; further entries are not kept, and their journals say so."""
MAX_WAITING_OF_A_TENANT = 32 << 20
_MAX_WITH_BLOBS = MAX_WAITING_OF_A_TENANT // 2
"""A blob of a tenant of whom more would wait is not kept: an answer may be missing, and not that there was one."""


class WaitingBytes:
    """Of each tenant, and of all."""

    def __init__(self) -> None:
        self._all = 0
        self._of_tenants: Counter[str] = Counter()

    def has_room(self, tenant: str, size: int, *, blob: bool = False) -> bool:
        """Whether so much more of this tenant may wait."""
        most = _MAX_WITH_BLOBS if blob else MAX_WAITING_OF_A_TENANT
        return self._of_tenants[tenant] + size <= most and self._all + size <= MAX_WAITING

    def change(self, tenant: str, by: int) -> None:
        self._all += by
        self._of_tenants[tenant] += by
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
