"""One call's work per turn of the event loop, so that a burst of calls holds up nobody else.

Calls that become ready together would run one after the other before the loop looks at its sockets again: thirty of
them keep `/health` waiting for as long as all thirty take. Here each waits for a turn of its own; between two turns
the loop serves whatever else has come. No time is lost: as long as somebody waits, the next turn follows at once.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Whoever is alone passes at once; the others come in their order."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def next(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._pass_on)
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # one that was cancelled takes no turn
                waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass_on)
                return
        self._taken = False
