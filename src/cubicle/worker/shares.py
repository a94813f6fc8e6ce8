"""Fair shares of the worker's one processor: tenants have equal parts of it, and the chats of a tenant of theirs.

What runs for a chat is timed, step by step: the parsing of its guest's frames and every task that serves its callers. A
chat that is further on than the others who have work by more than `SLACK` waits, and its steps go on one after the
other as the others catch up (start-time fair queueing). Alone, a chat waits for nobody.
"""

from __future__ import annotations

import asyncio
import collections.abc
import time
from collections import Counter, deque
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any

from cubicle.core.chat import Chat
from cubicle.machine.connection import GuestLink

SLACK = 0.003
"""Seconds of processor time."""
_MAX_CONCURRENT_STEPS = 8
"""Of one chat, that go on before the event loop looks for what else there is to do."""

current: ContextVar[CpuShare | None] = ContextVar("cubicle_worker_share", default=None)
"""For whom the running task works."""


class CpuShares:
    """All chats of the worker."""

    def __init__(self) -> None:
        self._shares: dict[Chat, CpuShare] = {}
        self._recent: set[CpuShare] = set()
        self._before: set[CpuShare] = set()
        """Those that did something in this round and in the one before."""
        self._waiting: set[CpuShare] = set()
        self._chats: Counter[str] = Counter()
        """How many chats of each tenant had work then."""
        self._level = 0.0
        """How far the one that is least far on had come."""
        self._pump: asyncio.Handle | None = None

    def of(self, chat: Chat) -> CpuShare:
        return self._shares.setdefault(chat, CpuShare(self, chat))

    def forget(self, share: CpuShare) -> None:
        self._shares.pop(share.chat, None)
        self._recent.discard(share)
        self._before.discard(share)

    def charge(self, share: CpuShare, seconds: float) -> None:
        self._recent.add(share)
        share.progress = max(share.progress, self._level)  # what it did not use before is not owed to it
        share.progress += seconds * max(1, self._chats[share.chat.tenant])

    def may_go_on(self, share: CpuShare) -> bool:
        return share.progress <= self._level + SLACK

    def wait(self, share: CpuShare) -> asyncio.Future[None]:
        """The next turn of this chat."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.turns.append(turn)
        self._waiting.add(share)
        if self._pump is None:
            self._pump = asyncio.get_running_loop().call_soon(self._go_on)
        return turn

    def _look(self) -> None:
        """See who has work, and how far the last of them is."""
        busy = self._recent | self._before | self._waiting
        self._level = max(self._level, min(share.progress for share in busy))
        self._chats = Counter(share.chat.tenant for share in busy)
        self._before, self._recent = self._recent, set()

    def _go_on(self) -> None:
        """Once in each round of the event loop, while somebody waits: let those go on whose turn it is."""
        self._pump = None
        self._look()
        for share in list(self._waiting):
            released = 0
            while share.turns and (released < _MAX_CONCURRENT_STEPS and share.progress <= self._level + SLACK):
                turn = share.turns.popleft()
                if not turn.done():
                    turn.set_result(None)
                    released += 1
            if not share.turns:
                self._waiting.discard(share)
        if self._waiting:
            self._pump = asyncio.get_running_loop().call_soon(self._go_on)


class CpuShare:
    """One chat."""

    __slots__ = ("_shares", "chat", "lines", "progress", "turns")

    def __init__(self, shares: CpuShares, chat: Chat) -> None:
        self._shares = shares
        self.chat = chat
        self.progress = 0.0
        """The processor time that it used, in the measure of its part."""
        self.turns: deque[asyncio.Future[None]] = deque()
        self.lines = 0
        """Connections to its guest."""

    def charge(self, seconds: float) -> None:
        self._shares.charge(self, seconds)

    def turn(self) -> asyncio.Future[None] | None:
        """What to wait for before it goes on; None if it may now."""
        return None if not self.turns and self._shares.may_go_on(self) else self._shares.wait(self)


class Metered(collections.abc.Coroutine[Any, Any, Any]):
    """A coroutine, each step of which is timed and waits for its turn."""

    __slots__ = ("_had_turn", "_inner", "_share")

    def __init__(self, inner: Coroutine[Any, Any, Any], share: CpuShare) -> None:
        self._inner = inner
        self._share = share
        self._had_turn = False

    def send(self, value: Any) -> Any:
        if not self._had_turn and (turn := self._share.turn()) is not None:
            self._had_turn = True
            turn._asyncio_future_blocking = True  # what `await` does before it hands a future to the task
            return turn
        self._had_turn = False
        began = time.thread_time()
        try:
            return self._inner.send(value)
        finally:
            self._share.charge(time.thread_time() - began)

    def throw(self, *error: Any) -> Any:
        self._had_turn = False
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # anyio and the debugger look at a coroutine's state


def task_factory(loop: Any, work: Any, context: Context | None = None, **more: Any) -> asyncio.Task[Any]:
    """Tasks that work for a chat are metered; for `loop.set_task_factory`."""
    share = current.get() if context is None else context.get(current)
    if share is not None and isinstance(work, collections.abc.Coroutine):
        work = Metered(work, share)
    return asyncio.Task(work, loop=loop, context=context, **more)


class MeteredLine(GuestLink):
    """The worker's connection to a guest: its frames are parsed on the time of its chat."""

    MAX_UNREAD = 256 * 1024 * 1024
    """Of all chats together; a chat that has no more than its part of it is never refused."""
    MAX_INBOUND = 20_000
    """Callers of all chats together."""
    _SMALL = 2 * 1024 * 1024
    _lines: set[MeteredLine] = set()  # noqa: RUF012 — all of this process

    def __init__(self) -> None:
        super().__init__()
        share = current.get()
        assert share is not None
        self._share = share
        self._turn: asyncio.Future[None] | None = None
        self._lines.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.discard(self)
        if self._turn is not None:
            self._turn.cancel()
        super().connection_lost(exc)

    def has_room(self, amount: int) -> bool:
        if not super().has_room(amount):
            return False
        mine = self.unread + amount
        if mine <= self._SMALL:
            return True
        others = sum(line.unread for line in self._lines)
        return others + amount <= self.MAX_UNREAD or mine <= self.MAX_UNREAD / len(self._lines)

    def may_accept(self, inbound: int) -> bool:
        if not super().may_accept(inbound):
            return False
        total = sum(len(line._inbound) for line in self._lines)
        return total < self.MAX_INBOUND or inbound < self.MAX_INBOUND / len(self._lines)

    def _go_on(self) -> None:
        began = time.thread_time()
        super()._go_on()
        self._share.charge(time.thread_time() - began)
        if self._resting is not None or self._transport is None or self._transport.is_closing():
            return
        self._turn = self._share.turn()
        if self._turn is not None:
            self._transport.pause_reading()
            self._turn.add_done_callback(self._on_turn)

    def _on_turn(self, turn: asyncio.Future[None]) -> None:
        self._turn = None
        if not turn.cancelled() and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
