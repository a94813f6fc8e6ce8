"""Word that something has happened somewhere in the service, for those who show an overview and look again then."""

from __future__ import annotations

import asyncio


class News:
    """Whoever waits takes `next` before looking, and waits for it after: nothing is missed between the two."""

    def __init__(self) -> None:
        self.next = asyncio.Event()
        """Set at the next thing that happens; from then on there is another."""

    def tell(self) -> None:
        told, self.next = self.next, asyncio.Event()
        told.set()
