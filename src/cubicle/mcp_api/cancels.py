"""Requests in flight, so that `notifications/cancelled`, which comes in a POST of its own, finds the one it means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from cubicle.rules.chats import Chat


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
        """End the request; whether there was one. A late or unknown one is no error."""
        scopes = self._scopes.get(key, ())
        for scope in scopes:
            scope.cancel()
        return bool(scopes)
