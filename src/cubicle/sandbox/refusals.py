"""What the network door refused a sandbox, for those who run commands there: most programs do not show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 3


class Refusals:
    """Sentences about refused requests; each goes to whoever listens at the time."""

    def __init__(self) -> None:
        self._listeners: list[list[str]] = []

    def add(self, sentence: str) -> None:
        for heard in self._listeners:
            if len(heard) < _MOST and sentence not in heard:
                heard.append(sentence)

    @contextmanager
    def heard(self) -> Iterator[list[str]]:
        """The first few different ones of the block, as they come."""
        heard: list[str] = []
        self._listeners.append(heard)
        try:
            yield heard
        finally:
            self._listeners = [listener for listener in self._listeners if listener is not heard]
