"""What the egress proxy refused a sandbox: for those who run commands there, and who watch its browser.

Most programs do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_MAX_COUNT = 3
_MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request that did not get through. `target` is `host:port`."""

    target: str
    note: str
    """For the model that started the program."""
    shown: str
    """For a person."""


class Refusals:
    """Each goes to whoever listens at the time; the last ones are kept by their target."""

    def __init__(self) -> None:
        self._listeners: list[list[str]] = []
        self._kept: dict[str, Refusal] = {}
        self.on_add: Callable[[Refusal], None] | None = None
        """Told of each."""

    def add(self, refusal: Refusal) -> None:
        self._kept.pop(refusal.target, None)
        self._kept[refusal.target] = refusal
        if len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        if self.on_add is not None:
            self.on_add(refusal)
        for heard in self._listeners:
            if len(heard) < _MAX_COUNT and refusal.note not in heard:
                heard.append(refusal.note)

    def latest(self, target: str) -> Refusal | None:
        """The last one of this target, unless many others were refused since."""
        return self._kept.get(target)

    @contextmanager
    def heard(self) -> Iterator[list[str]]:
        """The first few different notes of the block, as they come."""
        heard: list[str] = []
        self._listeners.append(heard)
        try:
            yield heard
        finally:
            self._listeners = [listener for listener in self._listeners if listener is not heard]
