"""DevTools input is held while a person drives: one rule for every DevTools connection that comes through the service.

A message whose method is in the domain `Input` waits until control is given back, and so does what its connection sends
after it. What has waited for `HOLD_SECONDS` is answered with an error and not done: the page that it was meant for has
changed under the person's hands. Everything else, such as to read a page or to take a screenshot, is passed on.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

HOLD_SECONDS = 15.0
_INPUT = re.compile(rb'"method"\s*:\s*"Input\.')
_MAX_READ = 1024**2
REFUSED = "A person has control of the browser. This input was not sent. Try again when the person has given it back."


class InputGate:
    """Of one chat. Open but while somebody drives."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._waiting = 0
        self._keeper: object = None
        self.on_wait: Callable[[], None] = lambda: None
        """Told when the first message begins to wait, and when none waits any more."""

    @property
    def waiting(self) -> bool:
        return self._waiting > 0

    def close(self, keeper: object) -> None:
        self._keeper = keeper
        self._open.clear()

    def open(self, keeper: object) -> None:
        """Unless somebody else has closed it since."""
        if self._keeper is keeper:
            self._keeper = None
            self._open.set()

    def holds(self, message: bytes) -> bool:
        """Whether it has to wait now. In JSON an unescaped quote stands for itself alone: the pattern is in no text."""
        return not self._open.is_set() and _INPUT.search(message[:_MAX_READ]) is not None

    async def opened(self, limit: float) -> bool:
        """Wait until it is open; False if that took too long."""
        self._count(1)
        try:
            async with asyncio.timeout(max(0.0, limit)):
                await self._open.wait()
        except TimeoutError:
            return self._open.is_set()
        finally:
            self._count(-1)
        return True

    def _count(self, by: int) -> None:
        before, self._waiting = self._waiting, self._waiting + by
        if bool(before) != bool(self._waiting):
            self.on_wait()


def refusal_of(message: bytes) -> bytes | None:
    """The answer to a message that is not passed on; None if it asks for none."""
    try:
        asked = json.loads(message[: _MAX_READ + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or type(asked.get("id")) is not int:
        return None
    answer = {"id": asked["id"], "error": {"code": -32000, "message": REFUSED}}
    if isinstance(asked.get("sessionId"), str):
        answer["sessionId"] = asked["sessionId"]
    return json.dumps(answer).encode()
