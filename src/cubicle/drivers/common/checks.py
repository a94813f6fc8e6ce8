"""What a check of the host or the engine finds, for `cubicle doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    GOOD = "ok"
    WEAK = "weak"
    """It works, but not as well as it could."""
    MISSING = "missing"
    """Nothing works without it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""
    """The command that fixes it; empty if there is nothing to fix."""
