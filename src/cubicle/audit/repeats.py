"""What happens again and again is told of once, then once a minute with its number: who floods the service with it does
not fill the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

SECONDS = 60.0
MAX_KEYS = 1_000


Tell = Callable[[tuple[str, ...], Any, int], None]
"""Gets the key, what the last one was about, and how many there were."""


class Repeats:
    """Tells of the first of each key at once, and of the others when the time is over."""

    def __init__(self, tell: Tell, seconds: float = SECONDS) -> None:
        self._tell = tell
        self._seconds = seconds
        self._counts: dict[tuple[str, ...], tuple[int, Any]] = {}

    def add(self, key: tuple[str, ...], about: Any, *, wide: tuple[tuple[str, ...], Any]) -> None:
        """`wide` takes the place of key and about when very many keys are counted: it must be of few."""
        if key not in self._counts and len(self._counts) >= MAX_KEYS:
            key, about = wide
        if key in self._counts:
            self._counts[key] = (self._counts[key][0] + 1, about)
            return
        self._counts[key] = (0, about)
        self._tell(key, about, 1)
        asyncio.get_running_loop().call_later(self._seconds, self._over, key)

    def end(self) -> None:
        """Tell of what was counted so far."""
        for key in list(self._counts):
            self._over(key)

    def _over(self, key: tuple[str, ...]) -> None:
        count, about = self._counts.pop(key, (0, None))
        if count:
            self._tell(key, about, count)
