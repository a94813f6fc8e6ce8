"""What the event loop knows of one chat's journal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cubicle.journal.writer import Operation


@dataclass(slots=True)
class Head:
    """The last number, and what waits to be written."""

    digest: str
    number: int = 0
    tenant: str = ""
    """Known from the first entry on: until then nothing has a size."""
    operations: list[Operation] = field(default_factory=list)
    size: int = 0
    """Bytes that wait."""
    since: float = 0.0
    """When the first of them came, by the loop's clock."""
    dirty: bool = False
    """Something was recorded that is not known to be on disk."""
    settled: int = 0
    """The last number that is on disk."""
    writing: int = 0
    """How many times what waited was handed over to the thread, and is not written yet."""
    released: bool = False
    held: bool = False
    """The chat has neither a journal nor a sandbox: what is recorded waits until it has one of them."""
    open_calls: int = 0
    """While it is held: calls that have not ended. With the last of them, what waits is dropped."""

    @property
    def idle(self) -> bool:
        return not (self.operations or self.writing or self.dirty)


@dataclass(slots=True)
class InFlight:
    """What was handed over to the thread at once."""

    head: Head
    size: int
    sync: bool
    since: float
    waiter: asyncio.Future[bool] | None

    def answer(self, *, kept: bool) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(kept)
