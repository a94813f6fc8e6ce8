"""What the journal is told that is no tool call: take-overs by people, and what the egress proxy refused."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal
from cubicle.machine.machine import Machine
from cubicle.machine.refusals import Refusal

_MAX_AT_ONCE = 20.0
_PER_SECOND = 0.1
"""What a sandbox tries again and again must not push its calls out of the journal."""
_AGAIN_SECONDS = 60.0
"""A take-over by the same person within this is the same one: a page that connects again."""
_MAX_KNOWN = 5_000
_MAX_TEXT = 500


class JournalNotes:
    """Writes them down, each kind at a bounded pace."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._clock = clock
        self.told: Callable[[Chat, str, str], None] = lambda chat, what, user: None
        """Called with each take-over: the chat, what was taken over, and the name that the person gave."""
        self._taken_over: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._given_back: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def take_over(self, chat: Chat, what: Literal["terminal", "browser", "agent"], user: str = "") -> None:
        """A person uses the chat's terminal, browser or coding agent by hand."""
        key, now = (chat.digest, what, user[:_MAX_TEXT]), self._clock()
        before = self._taken_over.pop(key, None)
        self._taken_over[key] = now
        if len(self._taken_over) > _MAX_KNOWN:
            self._taken_over.popitem(last=False)
        if before is None or now - before > _AGAIN_SECONDS:
            self.told(chat, what, user[:_MAX_TEXT])
            self._journal.record(chat, "takeover", {"what": what, "user": user[:_MAX_TEXT]})

    def hand_back(self, chat: Chat, what: Literal["browser"], user: str, seconds: float) -> None:
        """A person who used it gave it back; of the same person, once in a while."""
        name, now = user[:_MAX_TEXT], self._clock()
        before = self._given_back.pop((chat.digest, what, name), None)
        self._given_back[chat.digest, what, name] = now
        if len(self._given_back) > _MAX_KNOWN:
            self._given_back.popitem(last=False)
        if before is None or now - before > _AGAIN_SECONDS:
            self._journal.record(chat, "handback", {"what": what, "user": name, "seconds": round(seconds, 1)})

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        for kept in (self._taken_over, self._given_back):
            for key in [key for key in kept if key[0] == chat.digest]:
                del kept[key]

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """A service of every sandbox: what the egress proxy refuses it is written down."""
        machine.refusals.on_add = _Denials(self._journal, chat, self._clock).add
        try:
            yield
        finally:
            machine.refusals.on_add = None


class _Denials:
    def __init__(self, journal: Journal, chat: Chat, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._chat = chat
        self._clock = clock
        self._left = _MAX_AT_ONCE
        self._at = clock()
        self._omitted = 0

    def add(self, refusal: Refusal) -> None:
        now = self._clock()
        self._left = min(_MAX_AT_ONCE, self._left + (now - self._at) * _PER_SECOND)
        self._at = now
        if self._left < 1:
            self._omitted += 1
            return
        self._left -= 1
        host, _, port = refusal.target.rpartition(":")
        fields: dict[str, object] = {
            "host": host[:_MAX_TEXT],
            "port": int(port) if port.isdecimal() and len(port) < 6 else 0,
            "reason": refusal.shown[:_MAX_TEXT],
        }
        if self._omitted:
            fields["omitted"], self._omitted = self._omitted, 0
        self._journal.record(self._chat, "egress", fields)
