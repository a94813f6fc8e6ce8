"""Visits of ports that last, say a WebSocket or a stream of events: each ends when what let it in does.

VisitOver    the link has expired, or its share was revoked
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

_LOOK_SECONDS = 2.0
"""How soon a key or a link that was revoked is noticed, a clock that was set, and a computer that slept."""


class VisitOver(Exception):
    """What let the visitor in does so no longer."""


class _Visit:
    def __init__(
        self,
        limit: asyncio.Timeout,
        expires: int | None,
        clock: Callable[[], float],
        tell: Callable[[], None],
        holds: Callable[[], bool],
    ) -> None:
        self._limit = limit
        self._tell = tell
        self._expires = expires
        self._clock = clock
        self._holds = holds
        self._timer: asyncio.TimerHandle | None = None
        self.look()

    def look(self) -> None:
        """End it if it is time, else look again when it may be."""
        left = self._expires - self._clock() if self._expires is not None else _LOOK_SECONDS
        if left <= 0 or not self._holds():
            self.end()
        else:
            self._timer = asyncio.get_running_loop().call_later(min(left, _LOOK_SECONDS), self.look)

    def end(self) -> None:
        with suppress(RuntimeError):  # it ends already
            self._tell()
            self._limit.reschedule(asyncio.get_running_loop().time())

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class RunningVisits:
    """All of one service."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._of_share: dict[str, set[_Visit]] = {}

    async def run(
        self,
        work: Awaitable[None],
        expires: int | None,
        share: str = "",
        tell: Callable[[], None] = lambda: None,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        """Await the work; VisitOver when the time comes, the share ends, or `holds` says no, before it is done. `tell`
        is called before the work is cancelled for that."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                visit = _Visit(limit, expires, self._clock, tell, holds)
                self._of_share.setdefault(share, set()).add(visit)
                try:
                    await work
                finally:
                    visit.forget()
                    self._forget(share, visit)
        except TimeoutError:
            if limit.expired():
                raise VisitOver from None
            raise

    def end_share(self, share: str) -> None:
        """Cut off everybody who came by this share."""
        for visit in list(self._of_share.get(share, ())) if share else ():
            visit.end()

    def end_all(self) -> None:
        """Cut off everybody."""
        for visits in list(self._of_share.values()):
            for visit in list(visits):
                visit.end()

    def _forget(self, share: str, visit: _Visit) -> None:
        visits = self._of_share[share]
        visits.discard(visit)
        if not visits:
            del self._of_share[share]
