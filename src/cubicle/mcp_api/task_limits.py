"""How many MCP tasks run at once, and for how long: also those that a service before this one began."""

from __future__ import annotations

import time
from collections import Counter

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import Busy
from cubicle.journal.format import Entry
from cubicle.mcp_api.running_calls import RunningCall

MAX_RUNNING_OF_A_CHAT = 32
MAX_RUNNING_OF_A_TENANT = 256
_AT_LEAST = 1.0
"""Seconds that an expired one has to be found in its sandbox, where it is ended."""


class TaskLimits:
    """Counts the tasks that run, and ends each when it expires."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    def require_room(self, chat: Chat) -> None:
        """Raises Busy."""
        if self._running[chat.tenant] >= MAX_RUNNING_OF_A_TENANT or self._running[chat.digest] >= MAX_RUNNING_OF_A_CHAT:
            raise Busy("Too many tasks run already. Wait until some of them are done, or cancel them.")

    def add(self, call: RunningCall, identity: str, expires: float) -> None:
        """The call of this identity is a task, and expires at this Unix time. It counts once."""
        call.end_after(max(_AT_LEAST, expires - time.time()))
        if call.task:
            return
        call.task = identity
        names = (call.chat.tenant, call.chat.digest)
        self._running.update(names)

        def ended() -> None:
            for name in names:
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]

        call.on_end(ended)


def ttl_of(begin: Entry) -> int | None:
    """Seconds after its start at which a call expires; None for one that is no task."""
    ttl = begin.fields.get("ttl")
    return ttl if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl > 0 else None


def first_begun(begin: Entry) -> float:
    """When a call was begun for the first time, by whichever service."""
    first = begin.fields.get("begun")
    return min(begin.at, first) if isinstance(first, int | float) else begin.at


def expires_at(begin: Entry) -> float | None:
    """When a task expires, in Unix time; None for a call that is none."""
    ttl = ttl_of(begin)
    return None if ttl is None else first_begun(begin) + ttl
