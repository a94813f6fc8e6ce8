"""Requests in flight, so that `notifications/cancelled`, which comes in a POST of its own, finds the one it means."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from cubicle.core.chat import Chat

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestKey:
    """One request of one MCP session of one chat. Clients may spell a number's id as text."""

    session: str | None
    chat: Chat
    request: str


class InFlight:
    """Who can be cancelled."""

    def __init__(self) -> None:
        self._scopes: dict[RequestKey, list[anyio.CancelScope]] = {}

    @contextmanager
    def cancellable(self, key: RequestKey) -> Iterator[anyio.CancelScope]:
        """A scope that `cancel` of the same key cancels."""
        with anyio.CancelScope() as scope:
            self._scopes.setdefault(key, []).append(scope)
            try:
                yield scope
            finally:
                scopes = self._scopes[key]
                scopes.remove(scope)
                if not scopes:
                    del self._scopes[key]

    def cancel(self, key: RequestKey) -> bool:
        """End the request; whether one was ended. A late or unknown one is no error.

        Some clients give all their requests the same id. Of several that it could mean, none is ended.
        """
        scopes = self._scopes.get(key, ())
        if len(scopes) > 1:
            log.info("a cancellation fits %d requests, and ends none of them", len(scopes))
        if len(scopes) != 1:
            return False
        scopes[0].cancel()
        return True
