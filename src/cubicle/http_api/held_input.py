"""What a DevTools client sends while a person drives: held in its order, within bounds (browser/input_gate.py)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from cubicle.browser.input_gate import HOLD_SECONDS, InputGate, refusal_of

_MAX_SIZE = 1024**2
"""Bytes held of one connection; what comes then stays in its socket."""


@dataclass(frozen=True, slots=True)
class Held:
    """One message, and until when it may wait."""

    message: bytes
    text: bool
    until: float


class HeldInput:
    """Of one connection."""

    def __init__(self, gate: InputGate, limit: float = HOLD_SECONDS) -> None:
        self._gate = gate
        self._limit = limit
        self._held: deque[Held] = deque()
        self._size = 0

    def keeps(self, message: bytes, text: bool) -> bool:
        """Whether the message has to wait: for the gate, or for one before it. It is kept then."""
        if not self._held and not self._gate.holds(message):
            return False
        until = asyncio.get_running_loop().time() + self._limit
        self._held.append(Held(message, text, until))
        self._size += len(message)
        return True

    @property
    def is_full(self) -> bool:
        return self._size > _MAX_SIZE

    @property
    def is_empty(self) -> bool:
        return not self._held

    async def next(self) -> tuple[Held, bytes | None]:
        """The first one, when its time has come; with the answer to it if it is not to be passed on."""
        first = self._held[0]
        refusal = None
        if self._gate.holds(first.message):
            left = first.until - asyncio.get_running_loop().time()
            if not await self._gate.opened(left):
                refusal = refusal_of(first.message) or b""
        self._held.popleft()
        self._size -= len(first.message)
        return first, refusal
