"""The queue of starts: a sandbox over a limit waits until another one stops, in a fair order.

Next is the tenant that has the fewest sandboxes running; within it, who came first. Nothing that runs is stopped for
it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from cubicle.core.chat import Chat
from cubicle.machine.errors import StartRefused
from cubicle.quotas.limits import Limit, LimitTable, Scope, Subject, duration, setting_name
from cubicle.tasks import start_task

_LOOK_SECONDS = 0.5
"""Between two looks whether a sandbox has stopped, while anybody waits."""
_MAX_WAITING = 500
_MAX_WAITING_TENANT = 200

Running = Callable[[], Iterable[tuple[str, str]]]
"""Digest and tenant of each sandbox that is up or starting."""


@dataclass(eq=False, slots=True)
class _Waiter:
    chat: Chat
    owners: tuple[Subject, ...]
    since: float = field(default_factory=time.time)
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def user(self) -> str:
        """Who waits; nothing if nobody is named, or users have no limits."""
        return next((owner.name for owner in self.owners if owner.scope is Scope.USER), "")


@dataclass(eq=False, slots=True)
class _Follower:
    report: Callable[[str], None]
    told: int = 0
    """The position that it was told last."""


class StartQueue:
    """Give `admitted` to the fleet."""

    def __init__(
        self,
        limits: LimitTable,
        total: int,
        *,
        patience: float,
        running: Running,
        owners: Callable[[str], tuple[Subject, ...]],
        waited: Callable[[float], None] = lambda seconds: None,
        refused: Callable[[Chat, str, Limit, Scope], None] = lambda chat, user, limit, scope: None,
    ) -> None:
        self._limits, self._total, self._patience = limits, total, patience
        self._running, self._owners, self._waited, self._refused = running, owners, waited, refused
        self._waiting: list[_Waiter] = []
        self._starting: dict[str, str] = {}
        """Admitted, and perhaps not seen as starting yet: tenant by digest."""
        self._followers: dict[str, list[_Follower]] = {}
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def limited(self) -> bool:
        """Whether a start can have to wait at all."""
        return bool(self._total) or self._limits.sandboxes

    def waiting(self) -> list[tuple[Chat, str, float]]:
        """Chat, user, and since when it waits, of each start of the queue, in the order in which they came."""
        return [(waiter.chat, waiter.user, waiter.since) for waiter in self._waiting]

    @contextmanager
    def followed(self, chat: Chat, report: Callable[[str], None]) -> Iterator[None]:
        """Within the block, say the position of this chat's start each time that it changes."""
        if not self.limited:
            yield
            return
        followers, mine = self._followers.setdefault(chat.digest, []), _Follower(report)
        followers.append(mine)
        try:
            yield
        finally:
            followers.remove(mine)
            if not followers:
                self._followers.pop(chat.digest, None)

    @asynccontextmanager
    async def admitted(self, chat: Chat) -> AsyncIterator[None]:
        """Wait for room, then start the sandbox in the block. Raises StartRefused."""
        if not self.limited:
            yield
            return
        await self._admit(_Waiter(chat, self._owners(chat.digest)))
        try:
            yield
        finally:
            self._starting.pop(chat.digest, None)
            self._dispatch()

    def position(self, chat: Chat) -> int:
        """Which start of the queue this one is about; 0: it does not wait."""
        return self._positions().get(chat.digest, 0)

    def _positions(self) -> dict[str, int]:
        """The same of each chat whose start waits, by its digest. Before a start that has so many of its own tenant
        before it, each other tenant has as many, if it has them."""
        counts = Counter(waiter.chat.tenant for waiter in self._waiting)
        before = [0]
        for ahead in range(max(counts.values(), default=0)):
            before.append(before[-1] + sum(count > ahead for count in counts.values()))
        found: dict[str, int] = {}
        own: Counter[str] = Counter()
        for waiter in self._waiting:
            found.setdefault(waiter.chat.digest, 1 + before[own[waiter.chat.tenant]])
            own[waiter.chat.tenant] += 1
        return found

    async def _admit(self, waiter: _Waiter) -> None:
        began = time.monotonic()
        tenant = waiter.chat.tenant
        if not any(each.chat.tenant == tenant for each in self._waiting) and self._has_room(waiter, self._counts()):
            self._starting[waiter.chat.digest] = tenant
            return
        of_tenant = sum(each.chat.tenant == tenant for each in self._waiting)
        if len(self._waiting) >= _MAX_WAITING or of_tenant >= _MAX_WAITING_TENANT:
            raise self._refusal(waiter, "The queue of starts is full.")
        self._waiting.append(waiter)
        self._look_out()
        self._dispatch()
        try:
            async with asyncio.timeout(self._patience):
                await waiter.admitted
        except TimeoutError:
            self._give_back(waiter)
            position = self.position(waiter.chat)
            waited = f"It waited {self._patience:g} s in the queue and is number {position}."
            raise self._refusal(waiter, waited) from None
        except BaseException:
            self._give_back(waiter)
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self._waited(time.monotonic() - began)
            self._tell()

    def _give_back(self, waiter: _Waiter) -> None:
        """It was let go on in the moment in which it gave up."""
        if waiter.admitted.done() and not waiter.admitted.cancelled():
            self._starting.pop(waiter.chat.digest, None)

    def _refusal(self, waiter: _Waiter, why: str) -> StartRefused:
        scope, sentence = self._reason(waiter, self._counts())
        self._refused(waiter.chat, waiter.user, Limit.SANDBOXES, scope)
        return StartRefused(f"{sentence} {why} Stop one that is not needed, or try again in {duration(10)}.")

    def _counts(self) -> tuple[Counter[str], Counter[Subject]]:
        """Sandboxes that are up or starting, by tenant, and by user and key."""
        up = {**dict(self._running()), **self._starting}
        return Counter(up.values()), Counter(owner for digest in up for owner in self._owners(digest))

    def _has_room(self, waiter: _Waiter, counts: tuple[Counter[str], Counter[Subject]]) -> bool:
        return not self._reason(waiter, counts)[1]

    def _reason(self, waiter: _Waiter, counts: tuple[Counter[str], Counter[Subject]]) -> tuple[Scope, str]:
        """Whose limit keeps it from starting, and the sentence for it; none if nothing does."""
        tenants, owners = counts
        tenant = Subject(Scope.TENANT, waiter.chat.tenant)
        for subject, count in ((tenant, tenants[tenant.tenant]), *((each, owners[each]) for each in waiter.owners)):
            if (most := self._limits.of(subject).sandboxes) and count >= most:
                where = setting_name(subject.scope, "MAX_SANDBOXES")
                return subject.scope, f"This {subject.scope} has {most} sandboxes running, as many as it may ({where})."
        if self._total and tenants.total() >= self._total:
            return Scope.TENANT, f"The service has {self._total} sandboxes running, as many as it may (MAX_SANDBOXES)."
        return Scope.TENANT, ""

    def _dispatch(self) -> None:
        """Let go on whoever has room now."""
        while self._waiting:
            counts = self._counts()
            ready = [waiter for waiter in self._waiting if self._has_room(waiter, counts)]
            if not ready:
                break
            chosen = min(ready, key=lambda waiter: counts[0][waiter.chat.tenant])
            self._waiting.remove(chosen)
            if not chosen.admitted.done():
                self._starting[chosen.chat.digest] = chosen.chat.tenant
                chosen.admitted.set_result(None)
        self._tell()

    def _tell(self) -> None:
        for digest, position in self._positions().items() if self._followers else ():
            for follower in self._followers.get(digest, ()):
                if follower.told != position:
                    follower.told = position
                    follower.report(f"Waiting for a sandbox: number {position} of the queue.\n")

    def _look_out(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = start_task(self._look(), name="start queue")

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(_LOOK_SECONDS)
            self._dispatch()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
