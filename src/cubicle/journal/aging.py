"""Which journals have entries that are too old. A date that jumps drops nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cubicle.journal import reading

MAX_DRIFT = 60.0
"""Seconds by which the date may differ from the time that has passed."""


class CalmClock:
    """The date, once it has gone on as time does for long enough: one that was just set may be wrong."""

    def __init__(
        self,
        calm_seconds: float,
        date: Callable[[], float] = time.time,
        passed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calm = calm_seconds
        self._date, self._passed = date, passed
        self._began = date(), passed()

    def now(self) -> float | None:
        """The date; None while it is not to be trusted."""
        date, passed = self._date(), self._passed()
        since = passed - self._began[1]
        if abs(date - self._began[0] - since) > MAX_DRIFT:
            self._began = date, passed
            return None
        return date if since >= self._calm else None


def with_old_segments(folder: Path, before: float) -> list[str]:
    """The chats whose oldest segment was last written before this date. Blocks."""
    found = []
    for path in folder.iterdir():
        try:
            known = reading.segments(path)
            if known and known[0][1].lstat().st_mtime < before:
                found.append(path.name)
        except OSError:
            continue
    return found
