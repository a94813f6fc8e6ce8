"""The event loop's time, shared fairly: first between tenants, then between the chats of each.

Steps of requests that become ready together would run one after the other before the loop looks at its sockets again,
and whoever sends the most would have the most. Here every step of a request, from one `await` to the next, is timed and
charged to its tenant. As long as little was done in this turn of the loop, it runs at once. Beyond that it waits: next
comes the tenant that has used the least, and within it the chats take turns. Tasks that a request starts, and what its
connections into a sandbox bring, are part of it.
"""

from __future__ import annotations

import asyncio
import collections.abc
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import thread_time
from typing import Any, TypeVar

_T = TypeVar("_T")

STRANGERS = "?"
"""To whom a request is charged before its key was looked at, each address apart. No tenant has such a name."""
MAX_TURN_SECONDS = 0.001
"""Work of one turn of the loop after which the rest waits for the next one."""
_QUIET_TURNS = 8
"""Turns in which nobody had to wait after which what was used before is forgotten."""
_SHORTEST = 1e-5
"""Seconds that a step is charged with at least."""


@dataclass(slots=True)
class LoopShare:
    """Whom a piece of work is charged to. It can change: a request is a stranger's until its key was looked at."""

    tenant: str
    chat: str = ""


@dataclass(slots=True)
class _Tenant:
    used: float = 0.0
    """Seconds of the loop, counted so that nobody saves up what he did not use."""
    usual: float = _SHORTEST
    """Seconds that a step of this tenant takes, of late."""
    chats: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)
    """Those with steps that wait, in the order of their turns."""


class FairQueue:
    """One for the whole service. Whoever is alone never waits."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._waiting: dict[str, _Tenant] = {}
        self._now = self._most_used = 0.0
        self._quiet_turns = 0
        self._spent = 0.0
        self._turn_taken = False
        self._put_back: list[tuple[LoopShare, asyncio.Future[None]]] = []
        """Those whose turn came when it was over already: the first of the next one."""
        self._armed = False
        self._released = 0
        """Those whose wait is done, and who did not ask for their turn yet."""
        self._begun: list[float] = []
        """Where each step began that runs just now: the last one is a part of those before."""
        self._total = 0.0
        """Seconds that were charged so far, to anybody."""

    @property
    def is_free(self) -> bool:
        """Whether a step may run at once."""
        return self._spent < MAX_TURN_SECONDS and not self.is_awaited

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for a turn, or is about to take it."""
        return bool(self._waiting or self._put_back or self._released)

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        steps = sum(len(waiters) for tenant in self._waiting.values() for waiters in tenant.chats.values())
        return steps + len(self._put_back)

    @property
    def is_inside(self) -> bool:
        """Whether a step runs just now, and this is a part of it."""
        return bool(self._begun)

    def step(self, share: LoopShare, work: Callable[[], None]) -> None:
        """Do the work, and charge it."""
        began = self.begin()
        try:
            work()
        finally:
            self.end(share, began)

    def begin(self) -> float:
        """A step begins; what it returns goes to `end`."""
        began = thread_time() - self._total
        self._begun.append(began)
        return began

    def end(self, share: LoopShare, began: float) -> None:
        """Charge the step. What was charged meanwhile, to whomever, is not charged again."""
        self._begun.pop()
        self.charge(share, thread_time() - self._total - began)

    def settle(self, share: LoopShare) -> None:
        """Charge what the running step did until now; the rest may be another's."""
        if self._begun:
            self.charge(share, thread_time() - self._total - self._begun[-1])

    def charge(self, share: LoopShare, seconds: float) -> None:
        """A step took so long."""
        if seconds < _SHORTEST:
            seconds = _SHORTEST
        self._total += seconds
        tenant = self._tenants.get(share.tenant) or self._tenants.setdefault(share.tenant, _Tenant())
        used = tenant.used if tenant.used > self._now else self._now
        tenant.used = used = used + seconds
        usual = tenant.usual * 0.9
        tenant.usual = seconds if seconds > usual else usual
        self._spent += seconds
        if used > self._most_used:
            self._most_used = used
        if not self._armed:
            self._arm()

    async def next(self, share: LoopShare) -> None:
        """Wait for a turn, if others are ahead."""
        if not self.is_free:
            await self.wait(share)
            while not self.take_turn():
                await self.wait_again(share)

    def take_turn(self) -> bool:
        """Whether one whose wait is done may begin: steps before it can have taken longer than they usually do."""
        self._released = max(0, self._released - 1)
        if self._turn_taken and self._spent >= MAX_TURN_SECONDS:
            return False
        self._turn_taken = True
        return True

    def wait_again(self, share: LoopShare) -> asyncio.Future[None]:
        """After `take_turn` said no: done when the next turn begins."""
        waiter = asyncio.get_running_loop().create_future()
        self._put_back.append((share, waiter))
        self._arm()
        return waiter

    def wait(self, share: LoopShare) -> asyncio.Future[None]:
        """Done when it is this one's turn; then `take_turn` has the last word."""
        waiter = asyncio.get_running_loop().create_future()
        tenant = self._tenants.setdefault(share.tenant, _Tenant())
        tenant.used = max(tenant.used, self._now)
        tenant.chats.setdefault(share.chat, deque()).append(waiter)
        self._waiting[share.tenant] = tenant
        self._arm()
        return waiter

    def run(self, share: LoopShare, work: Callable[[], None]) -> None:
        """Do the work now, or when it is its turn."""

        if self.is_free and not self.is_inside:
            self.step(share, work)
        else:  # a step that goes on in itself would never end its turn
            self.when_turn(share, lambda: self.step(share, work))

    def when_turn(self, share: LoopShare, go_on: Callable[[], None]) -> None:
        """Call this when it is its turn."""
        self.wait(share).add_done_callback(partial(self._on_released, share, go_on))

    def _on_released(self, share: LoopShare, go_on: Callable[[], None], _waiter: asyncio.Future[None]) -> None:
        if self.take_turn():
            go_on()
        else:
            self.wait_again(share).add_done_callback(partial(self._on_released, share, go_on))

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """A new turn of the loop: let as many go on as usually fit into it."""
        self._armed, self._spent, self._turn_taken, self._released = False, 0.0, False, 0
        self._wait_in_front()
        self._quiet_turns = 0 if self._waiting else self._quiet_turns + 1
        if self._quiet_turns >= _QUIET_TURNS:
            self._now = self._most_used
        room = MAX_TURN_SECONDS
        expected: dict[str, float] = {}
        while self._waiting and room > 0:
            name = min(self._waiting, key=lambda each: self._waiting[each].used + expected.get(each, 0.0))
            tenant = self._waiting[name]
            self._now = max(self._now, tenant.used)
            if self._release(name, tenant):
                expected[name] = expected.get(name, 0.0) + tenant.usual
                room -= tenant.usual
        if self._waiting:
            self._arm()

    def _wait_in_front(self) -> None:
        """Those who were put back keep their places."""
        for share, waiter in reversed(self._put_back):
            tenant = self._tenants.setdefault(share.tenant, _Tenant())
            tenant.chats.setdefault(share.chat, deque()).appendleft(waiter)
            tenant.chats.move_to_end(share.chat, last=False)
            self._waiting[share.tenant] = tenant
        self._put_back.clear()

    def _release(self, name: str, tenant: _Tenant) -> bool:
        """The next of a tenant; False when that one has given up."""
        chat, waiters = next(iter(tenant.chats.items()))
        waiter = waiters.popleft()
        del tenant.chats[chat]
        if waiters:
            tenant.chats[chat] = waiters  # behind the others
        if not tenant.chats:
            del self._waiting[name]
        if waiter.done():
            return False
        waiter.set_result(None)
        self._released += 1
        return True


@types.coroutine
def metered(
    work: Coroutine[Any, Any, _T], queue: FairQueue, share: LoopShare, *, begun: bool = False
) -> Generator[Any, Any, _T]:
    """Await the work; each of its steps waits for its turn, and is charged to the share; if `begun`, not the first."""
    error: BaseException | None = None
    waits = not begun
    while True:
        if waits and error is None and not queue.is_free and not queue.is_inside:
            try:
                yield from queue.wait(share)
                while not queue.take_turn():
                    yield from queue.wait_again(share)
            except BaseException as cancelled:  # noqa: BLE001 — it is passed on to the work
                error = cancelled
        began = queue.begin()
        try:
            waits_for = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            error = None  # its traceback holds this frame: what the work had in hand would stay with the two
            queue.end(share, began)
        waits = True
        try:
            yield waits_for
        except BaseException as cancelled:  # noqa: BLE001 — it is passed on to the work
            error = cancelled


current: ContextVar[tuple[FairQueue, LoopShare] | None] = ContextVar("cubicle_fair_share", default=None)
"""Whom the running task works for, and the queue of its steps."""


def task_factory(loop: Any, work: Any, context: Context | None = None, **more: Any) -> asyncio.Task[Any]:
    """For `loop.set_task_factory`: what a request starts is metered as the request itself is.

    A task's first step does not wait: it is a part of the step that started it, and until then nobody may cancel it.
    """
    charged = current.get() if context is None else context.get(current)
    if charged is not None and isinstance(work, collections.abc.Coroutine):
        work = _metered_task(work, *charged)
    return asyncio.Task(work, loop=loop, context=context, **more)


async def _metered_task(work: Coroutine[Any, Any, _T], queue: FairQueue, share: LoopShare) -> _T:
    return await metered(work, queue, share, begun=True)
