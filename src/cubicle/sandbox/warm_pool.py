"""Blank sandboxes that are up before anybody asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import NoSpace, OwnedByAnother, OwnerHasSandbox, SandboxError
from cubicle.machine.liveness import TIMEOUT
from cubicle.machine.machine import Machine
from cubicle.sandbox import free_memory
from cubicle.sandbox.driver import Driver, SandboxSeen, State
from cubicle.sandbox.pool_demand import PoolDemand

log = logging.getLogger(__name__)

_REST_AFTER_FAILURE = 10.0
_REST_AFTER_DEATH = 1.0
_LOADING_SECONDS = 60.0
_PING_SECONDS = 1.0
_ADOPT_SECONDS = 5.0
_MAX_CONCURRENT_ADOPTS = 8
_LOOK_SECONDS = 5.0
"""Between two looks whether there are too many, or too little memory for as many."""
_GIVE_WAY_SECONDS = 2.0
"""So long at most a blank one waits for the starts that somebody waits for."""
_QUIET_SECONDS = 0.3
"""A pool that is half full is filled up when so long nobody has taken one: those who did run their first commands."""
_GROW_SHARE = 0.2
"""Of the memory: while less is available, the pool does not grow over its least."""
_SHRINK_SHARE = 0.1
"""While less than this is available, it has its least."""

Furnish = Callable[[Machine], Awaitable[None]]
"""What a blank sandbox gets before anybody waits for it."""


async def connect(driver: Driver, name: str, *, patience: float = _LOADING_SECONDS) -> Machine:
    """The machine of a sandbox that is up, checked to be one of ours.

    It may have been started this moment, and its socket is there before the guest is loaded. Less `patience` is for
    one that was up before. One that is stopped or frozen is let run on.
    """
    reach = partial(driver.connect, name)
    line = await GuestLink.over(await reach())
    can = driver.capabilities
    line.liveness.resume = partial(driver.resume, name) if can.resumes else None
    line.liveness.patience = patience
    machine = Machine(
        name,
        line,
        driver.uploads(name) if can.upload_folder else None,
        reach,
        partial(driver.network, name) if can.network_namespace else None,
        fd_passing=can.fd_passing,
    )
    try:
        await machine.hello(patience)
    except BaseException:
        machine.close()
        raise
    line.liveness.patience = TIMEOUT
    return machine


@dataclass(frozen=True, slots=True)
class Part:
    """Which names one of several processes over the same driver gives to sandboxes: blank ones of others are theirs."""

    slot: int = 1
    slots: int = 1

    def has(self, name: str) -> bool:
        return int(name[-8:], 16) % self.slots == self.slot - 1

    def new_name(self) -> str:
        while not self.has(name := "s" + secrets.token_hex(10)):
            pass
        return name


def new_name() -> str:
    return Part().new_name()


class WarmPool:
    """Keeps blank sandboxes up: as many as are wanted by the new chats that come, and that memory allows.

    One task of the fleet makes and deletes them, one at a time, after the starts that somebody waits for. A blank one
    that dies, hangs or cannot be used is deleted with everything of it.
    """

    def __init__(
        self,
        driver: Driver,
        demand: PoolDemand,
        furnish: Furnish | None = None,
        part: Part | None = None,
        memory: Callable[[], free_memory.FreeMemory] = free_memory.measure,
    ) -> None:
        self._driver = driver
        self.part = part or Part()
        self._demand = PoolDemand(0, 0) if driver.capabilities.pools else demand
        self._furnish = furnish
        self._memory = memory
        self.size = self._demand.least
        """How many are wanted now."""
        self._claims = FairSlots(total=4, of_tenant=3, of_chat=8)
        """A few at a time: who came first runs its command while others still wait, not all in the end."""
        self._blank: deque[Machine] = deque()
        self._unwanted: dict[str, float] = {}
        """To be deleted, and not before which time."""
        self._quiet_at = 0.0
        self._starts = 0
        self._no_starts = asyncio.Event()
        self._no_starts.set()
        self._wanted = asyncio.Event()
        self._full = asyncio.Event()

    @property
    def ready(self) -> int:
        """How many are up."""
        return len(self._blank)

    async def take(self, kept: int = 0) -> Machine | None:
        """A blank sandbox that answers, if there are more than those `kept`. The caller uses it, or gives it to
        `discard`."""
        self._full.clear()
        self._wanted.set()
        while len(self._blank) > kept:
            machine = self._blank.popleft()
            try:
                await machine.ping(_PING_SECONDS)
            except BaseException as error:
                self.discard(machine)
                if not isinstance(error, SandboxError):
                    raise
                log.warning("a blank sandbox does not answer: %s", error)
            else:
                return machine
        return None

    async def claim(self, chat: Chat) -> Machine | None:
        """A blank sandbox that is the chat's from now on, if there is one for its tenant."""
        if self._driver.capabilities.pools:
            return await self._claim_kept(chat.digest)
        self._demand.came(chat.tenant)
        async with self.start_elsewhere(), self._claims.hold(chat):
            self._quiet_at = time.monotonic() + _QUIET_SECONDS
            return await self._claim(chat, self._demand.kept_from(chat.tenant))

    async def _claim(self, chat: Chat, kept: int) -> Machine | None:
        while (blank := await self.take(kept)) is not None:
            try:
                await self._driver.start(blank.name, chat.digest)
            except NoSpace:
                self.put_back(blank)
                raise
            except OwnedByAnother:
                blank.close()  # nothing of another chat is removed here
            except SandboxError as error:
                log.warning("a blank sandbox could not be used: %s", error)
                self.discard(blank)
            else:
                return blank
        return None

    async def _claim_kept(self, owner: str) -> Machine | None:
        """One of those that the driver keeps itself; nobody has prepared it."""
        try:
            name = await self._driver.take_blank(owner)
        except OwnerHasSandbox as error:  # another service was quicker
            if not error.name:
                raise
            await self._driver.start(error.name, owner)
            return await connect(self._driver, error.name)
        if name is None:
            return None
        machine = await connect(self._driver, name, patience=_LOADING_SECONDS)
        try:
            if self._furnish is not None:
                await self._furnish(machine)
        except BaseException:
            machine.close()
            raise
        return machine

    @contextlib.asynccontextmanager
    async def start_elsewhere(self) -> AsyncIterator[None]:
        """Within the block somebody waits for a start: blank ones are made after it."""
        self._starts += 1
        self._no_starts.clear()
        try:
            yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._no_starts.set()

    def discard(self, machine: Machine) -> None:
        """It is of no use: it is deleted in the background."""
        machine.close()
        self._unwanted[machine.name] = 0.0
        self._wanted.set()

    async def filled(self) -> None:
        """Returns when the pool is full."""
        self._wanted.set()
        await self._full.wait()

    def close(self) -> None:
        """Hang up; the blank ones stay up for the next service."""
        while self._blank:
            self._blank.popleft().close()

    async def adopt(self, found: Sequence[SandboxSeen]) -> None:
        """Take in the blank ones that outlived a service before, as far as they are wanted; the others are deleted."""
        if self._driver.capabilities.pools:
            return
        found = [seen for seen in found if seen.owner is None and (self.part.slots == 1 or self.part.has(seen.name))]
        gate = asyncio.Semaphore(_MAX_CONCURRENT_ADOPTS)
        usable = [seen.name for seen in found if seen.state is State.RUNNING and seen.current]
        self._unwanted.update((seen.name, 0.0) for seen in found if seen.name not in usable)

        under_way = 0

        async def adopt(name: str) -> None:
            nonlocal under_way
            async with gate:
                if len(self._blank) + under_way < self.size:
                    under_way += 1
                    try:
                        await self._bring_in(name, _ADOPT_SECONDS)
                        return
                    except Exception as error:  # noqa: BLE001 — whatever ails it, nobody has used it
                        log.warning("a blank sandbox from before cannot be used: %s", error)
                    finally:
                        under_way -= 1
                self._unwanted[name] = 0.0

        await asyncio.gather(*map(adopt, usable))

    def put_back(self, machine: Machine) -> None:
        """One that was taken and is as blank as before."""
        self._blank.appendleft(machine)

    async def run(self, found: Sequence[SandboxSeen]) -> None:
        """Runs for as long as the fleet does, from what was there when it started."""
        await self.adopt(found)
        while True:
            self._wanted.clear()
            await self._drop_dead()
            await self._delete_one()
            self.size = await self._goal()
            if len(self._blank) < self.size:
                await self._make_one()
            elif len(self._blank) > self.size:
                self.discard(self._blank.pop())
            elif not self._due():
                await self._rest()

    async def _goal(self) -> int:
        """As many as are wanted, unless memory is short."""
        wanted, least = self._demand.wanted, self._demand.least
        if wanted == least or self._driver.capabilities.remote:
            return wanted
        try:
            share = (await asyncio.to_thread(self._memory)).share
        except OSError as error:
            log.warning("the memory could not be measured: %s", error)
            return least
        if share < _SHRINK_SHARE:
            return least
        return wanted if share >= _GROW_SHARE else min(wanted, max(least, len(self._blank)))

    async def _give_way(self) -> None:
        """What somebody waits for goes first, but a pool that is never filled would help nobody."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GIVE_WAY_SECONDS):
                await self._no_starts.wait()
                while len(self._blank) > self.size // 2 and (pause := self._quiet_at - time.monotonic()) > 0:
                    await asyncio.sleep(min(pause, _QUIET_SECONDS / 3))
                    await self._no_starts.wait()

    async def _make_one(self) -> None:
        await self._give_way()
        name = self.part.new_name()
        try:
            await self._driver.start(name, None)
            await self._bring_in(name, _LOADING_SECONDS)
        except Exception as error:
            if isinstance(error, NoSpace):
                log.debug("no blank sandbox is made: %s", error)  # who watches the space has said so
            elif isinstance(error, SandboxError):
                log.error("a blank sandbox could not be made: %s", error)
            else:
                log.exception("a blank sandbox could not be made")
            self._unwanted[name] = 0.0
            await self._delete_one()
            await asyncio.sleep(_REST_AFTER_FAILURE)

    async def _bring_in(self, name: str, patience: float) -> None:
        machine = await connect(self._driver, name, patience=patience)
        try:
            if self._furnish is not None:
                await self._furnish(machine)
            await self._driver.flush(name)
        except BaseException:
            machine.close()
            raise
        self._blank.append(machine)
        machine.when_gone(self._wanted.set)

    async def _drop_dead(self) -> None:
        """Those that died. One that dies as soon as it is made must not be made again without pause."""
        dead = [machine for machine in self._blank if not machine.alive]
        for machine in dead:
            log.warning("a blank sandbox ended by itself", extra={"sandbox": machine.name})
            self._blank.remove(machine)
            self._full.clear()
            self.discard(machine)
        if dead:
            await asyncio.sleep(_REST_AFTER_DEATH)

    async def _rest(self) -> None:
        """Until something changes; a larger pool than the least looks whether it still has to be as large."""
        self._full.set()
        looks = self._unwanted or len(self._blank) > self._demand.least or self.size != self._demand.wanted
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS if looks else None):
                await self._wanted.wait()

    def _due(self) -> str | None:
        """One that is to be deleted now."""
        now = time.monotonic()
        return next((name for name, after in self._unwanted.items() if after <= now), None)

    async def _delete_one(self) -> None:
        """What could not be deleted is tried again after a while."""
        if (name := self._due()) is None:
            return
        await self._give_way()
        try:
            if not await self._driver.delete_blank(name):
                log.warning("a sandbox that is not blank any more is not deleted", extra={"sandbox": name})
        except Exception as error:  # noqa: BLE001 — whatever it is, the others are kept up
            log.error("a blank sandbox could not be deleted: %s", error, extra={"sandbox": name})
            self._unwanted[name] = time.monotonic() + _REST_AFTER_FAILURE
        else:
            del self._unwanted[name]
