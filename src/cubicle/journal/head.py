"""What the event loop knows of one chat's journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from cubicle.journal.writer import Operation


@dataclass(slots=True)
class Head:
    """The last number, and what waits to be written."""

    digest: str
    number: int = 0
    operations: list[Operation] = field(default_factory=list)
    waiters: list[asyncio.Future[bool]] = field(default_factory=list)
    size: int = 0
    """Bytes that wait."""
    since: float = 0.0
    """When the first of them came, by the loop's clock."""
    sync: bool = False
    dirty: bool = False
    """Something was recorded that is not known to be on disk."""
    settled: int = 0
    """The last number that is on disk."""
    writing: bool = False
    released: bool = False
    held: bool = False
    """The chat has neither a journal nor a sandbox: what is recorded waits until it has one of them."""
    open_calls: int = 0
    """While it is held: calls that have not ended. With the last of them, what waits is dropped."""

    @property
    def idle(self) -> bool:
        return not (self.operations or self.waiters or self.writing or self.dirty)


def answer(waiters: Sequence[asyncio.Future[bool]], *, kept: bool) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(kept)
