"""Whether a silent guest is stopped, slow or gone for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from cubicle.machine.errors import SandboxError

TIMEOUT = 30.0
"""How long a guest may be silent that is not stopped or frozen: it may be slow, and people's processes end with it."""
_PING_SECONDS = 1.0
_RESUMES = 3
_RESUME_SECONDS = 8.0


class Liveness:
    """Asks a guest that nothing was heard of; one that a signal stopped or that is frozen is let run on first."""

    def __init__(self, answers: Callable[[float], Awaitable[bool]]) -> None:
        self._answers = answers
        self._asking = asyncio.Lock()
        self.heard = 0.0
        """When something came from the guest, by the clock of `time.monotonic`."""
        self.resume: Callable[[], Awaitable[bool]] | None = None
        """Lets a stopped or frozen guest run on; whether it was that."""
        self.patience = TIMEOUT
        self.over = False
        """Whether there is nobody left to ask."""
        self.given_up = False
        """Whether the guest was silent for so long that nobody should ask it again."""
        self.obituary = ""
        """What its callers are told then."""

    async def shown(self) -> bool:
        """Wait for a sign of life; False when the guest is given up."""
        began, resumes = time.monotonic(), 0
        async with self._asking:  # whoever waits with us has the answer of the first
            while not self.over and self.heard < began and not await self._answers(_PING_SECONDS):
                if self.over or self.heard >= began:
                    break
                resumes += await self._resumed()
                waited = time.monotonic() - began
                if resumes > _RESUMES or waited >= self.patience:
                    self._give_up(waited)
        return not self.given_up

    async def _resumed(self) -> bool:
        if self.resume is None:
            return False
        try:
            async with asyncio.timeout(_RESUME_SECONDS):
                return await self.resume()
        except (SandboxError, TimeoutError):
            return False

    def _give_up(self, waited: float) -> None:
        self.given_up = self.over = True
        self.obituary = (
            f"The sandbox has not answered for {waited:.0f} s and is given up. "
            "Its files are kept; the next call starts it anew, without the processes that ran in it."
        )
