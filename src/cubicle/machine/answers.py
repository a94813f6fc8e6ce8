"""What the guest answers, as checked records: it is not trusted, and may answer anything that JSON can say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_LARGEST = 2**63 - 1


def count_of(fields: Mapping[str, Any], name: str, default: int = 0) -> int:
    """A number of things or bytes; the default for anything else."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else default


def seconds_of(fields: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    """A time span or a rate, finite and not negative; the default for anything else."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    # Compared before it is converted: a number of 400 digits is no float.
    return float(value) if 0 <= value <= _LARGEST and math.isfinite(value) else default


def text_of(fields: Mapping[str, Any], name: str, default: str = "") -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else default


@dataclass(frozen=True, slots=True)
class Stats:
    """What a sandbox uses, as far as it says."""

    cpu_seconds: float | None
    memory: int | None
    processes: int | None
    disk_total: int | None
    disk_free: int | None
    links: int | None
    """Connections to the guest."""

    @property
    def disk_used(self) -> int | None:
        if self.disk_total is None or self.disk_free is None:
            return None
        return max(0, self.disk_total - self.disk_free)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        cpu = seconds_of(fields, "cpu_seconds", -1.0)
        counts = [count_of(fields, name, -1) for name in ("memory", "processes", "disk_total", "disk_free", "links")]
        return cls(None if cpu < 0 else cpu, *(None if number < 0 else number for number in counts))
