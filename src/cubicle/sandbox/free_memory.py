"""The memory that sandboxes can still have on this host, or in the container that the service runs in."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Of the root of the tree, beneath which sandboxes are too: limit, use, and where the use that is a cache is said."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    total: int
    available: int

    @property
    def share(self) -> float:
        """How much of it is available, 0 to 1."""
        return self.available / self.total if self.total else 0.0


def measure(meminfo: Path = Path("/proc/meminfo"), cgroups: Path = _CGROUPS) -> FreeMemory:
    """How it stands now: the tighter of the host's memory and the container's limit. Raises OSError."""
    text = meminfo.read_text()
    host = FreeMemory(_number(text, r"MemTotal:\s+(\d+) kB") * 1024, _number(text, r"MemAvailable:\s+(\d+) kB") * 1024)
    return min((host, *_limited(host.total, cgroups)), key=lambda memory: memory.share)


def _limited(host: int, cgroups: Path) -> list[FreeMemory]:
    found = []
    for limit, usage, stat, cache in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max", or no such tree
            total = int((cgroups / limit).read_text())
            used = int((cgroups / usage).read_text())
            unused = _number((cgroups / stat).read_text(), rf"(?m)^{cache} (\d+)$")
            if total < host:
                found.append(FreeMemory(total, max(0, total - used + unused)))
    return found


def _number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
