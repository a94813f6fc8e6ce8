"""Measures how long the guests take to answer, for every sandbox in use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cubicle.core.chat import Chat
from cubicle.machine.machine import Machine


class RoundTrips:
    """Give `attached` to the fleet."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe

    @asynccontextmanager
    async def attached(self, _chat: Chat, machine: Machine) -> AsyncIterator[None]:
        machine.watch_round_trips(self._observe)
        yield
