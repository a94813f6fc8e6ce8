"""Refuses new work while the host is short of memory or the event loop is late, before both collapse.

Refused is the tenant that has at least its share of the calls under way; one that has none gets through. What runs goes
on. A disk that is short refuses starts and uploads by itself (cubicle.sandbox.free_space).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from cubicle.quotas.limits import Overloaded

_MEMORY = Path("/proc/meminfo")
_AVAILABLE = re.compile(rb"MemAvailable:\s+(\d+) kB")
_SECONDS = 5


class LoadShedding:
    """`look` measures the memory; `require` refuses."""

    def __init__(self, memory_bytes: int, lag_seconds: float, lag: Callable[[], float], file: Path = _MEMORY) -> None:
        self._floor, self._most_lag, self._lag, self._file = memory_bytes, lag_seconds, lag, file
        self._available: int | None = None

    async def look(self) -> None:
        if self._floor:
            self._available = await asyncio.to_thread(_available, self._file)

    def require(self, tenant: str, under_way: Mapping[str, int]) -> None:
        """Raises Overloaded."""
        reason, sentence = self._short()
        if reason and under_way.get(tenant, 0) * max(1, len(under_way)) >= max(1, sum(under_way.values())):
            raise Overloaded(reason, sentence, _SECONDS)

    def _short(self) -> tuple[str, str]:
        if self._available is not None and self._available < self._floor:
            return "memory", "The host is short of memory."
        if self._most_lag and self._lag() > self._most_lag:
            return "loop", "The service has more to do than it can."
        return "", ""


def _available(file: Path) -> int | None:
    try:
        found = _AVAILABLE.search(file.read_bytes())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
