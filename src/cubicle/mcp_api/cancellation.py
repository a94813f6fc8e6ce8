"""Requests in flight, so that `notifications/cancelled`, which comes in a POST of its own, finds the one it means."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio

from cubicle.core.chat import Chat

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One request of one MCP session of one chat. Clients may spell a number's id as text."""

    session: str | None
    chat: Chat
    request: str


class Cancellable(Protocol):
    """What a request does: a scope, or a call that may outlive it."""

    def cancel(self) -> None: ...


class InFlight:
    """Who can be cancelled."""

    def __init__(self) -> None:
        self._known: dict[RequestKey, list[Cancellable]] = {}

    @contextmanager
    def cancellable(self, key: RequestKey) -> Iterator[anyio.CancelScope]:
        """A scope that `cancel` of the same key cancels."""
        with anyio.CancelScope() as scope:
            self.add(key, scope)
            try:
                yield scope
            finally:
                self.remove(key, scope)

    def add(self, key: RequestKey, work: Cancellable) -> None:
        """From now on `cancel` of this key means this work."""
        self._known.setdefault(key, []).append(work)

    def remove(self, key: RequestKey, work: Cancellable) -> None:
        known = self._known[key]
        known.remove(work)
        if not known:
            del self._known[key]

    def has(self, session: str | None, chat: Chat) -> bool:
        """Whether requests of this session are under way."""
        return any(key.session == session and key.chat == chat for key in self._known)

    def cancel(self, key: RequestKey) -> bool:
        """End the request; whether one was ended. A late or unknown one is no error.

        Some clients give all their requests the same id. Of several that it could mean, none is ended.
        """
        meant = {id(work): work for work in self._known.get(key, ())}
        if len(meant) > 1:
            log.info("a cancellation fits %d requests, and ends none of them", len(meant))
        if len(meant) != 1:
            return False
        next(iter(meant.values())).cancel()
        return True
