"""Ends what goes on after its right to has ended: a key that was revoked or expired, a link, a sign-in.

AccessOver    what let the request in does so no longer
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress

from cubicle.chat.authentication import Authentication
from cubicle.core.identity import Identity
from cubicle.tasks import repeated

LOOK_SECONDS = 1.0
_FULL_LOOK = 10


class AccessOver(Exception):
    """What let the request in does so no longer."""


class Watched:
    """What goes on, who does it, and how it is ended."""

    __slots__ = ("end", "identity")

    def __init__(self, identity: Identity, end: Callable[[], None]) -> None:
        self.identity = identity
        self.end = end


class AccessWatch:
    """Looks at every request that goes on, once a second: at its end and its key. A link is checked again, which is
    more work, when keys or links changed, and now and then."""

    def __init__(
        self, authentication: Authentication, clock: Callable[[], float] = time.time, seconds: float = LOOK_SECONDS
    ) -> None:
        self._authentication = authentication
        self._clock = clock
        self._seconds = seconds
        self._entries: set[Watched] = set()
        self._version = authentication.version
        self._looks = 0

    def begin(self, identity: Identity, end: Callable[[], None]) -> Watched:
        """Call `end` when this goes on after its right to; `done` is to follow. AccessOver if it has none."""
        if not self._authentication.still_holds(identity):
            raise AccessOver
        watched = Watched(identity, end)
        self._entries.add(watched)
        return watched

    def done(self, watched: Watched) -> None:
        self._entries.discard(watched)

    async def run(self, work: Callable[[], Awaitable[None]], identity: Identity) -> None:
        """Await the work; AccessOver when it was cut off, or has no right to begin any more."""
        limit = asyncio.timeout(None)

        def end() -> None:
            with suppress(RuntimeError):  # it ends already
                limit.reschedule(asyncio.get_running_loop().time())

        watched = self.begin(identity, end)
        try:
            async with limit:
                await work()
        except TimeoutError:
            if limit.expired():
                raise AccessOver from None
            raise
        finally:
            self.done(watched)

    def look(self) -> None:
        """End what has no right to go on."""
        version, now = self._authentication.version, self._clock()
        self._looks += 1
        changed = version != self._version or self._looks % _FULL_LOOK == 0
        self._version = version
        for entry in list(self._entries):
            expires = entry.identity.expires
            ended = expires is not None and expires <= now
            checked = changed or entry.identity.chat is None
            if ended or (checked and not self._authentication.still_holds(entry.identity)):
                entry.end()

    def running(self) -> AbstractAsyncContextManager[None]:
        return repeated(self.look, self._seconds, name="watch access")
