"""Blank sandboxes that are up before anybody asks."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import NoSpace, OwnedByAnother, OwnerHasSandbox, SandboxError
from cubicle.machine.liveness import TIMEOUT
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver, SandboxSeen, State

log = logging.getLogger(__name__)

_REST_AFTER_FAILURE = 10.0
_REST_AFTER_DEATH = 1.0
_LOADING_SECONDS = 60.0
_PING_SECONDS = 1.0
_ADOPT_SECONDS = 5.0
_MAX_CONCURRENT_ADOPTS = 8

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
    """Keeps `size` blank sandboxes running. One task of the fleet fills it.

    A blank one that dies, hangs or cannot be used is deleted with everything of it.
    """

    def __init__(self, driver: Driver, size: int, furnish: Furnish | None = None, part: Part | None = None) -> None:
        self._driver = driver
        self.part = part or Part()
        self.size = 0 if driver.capabilities.pools else size
        self._furnish = furnish
        self._blank: deque[Machine] = deque()
        self._unwanted: set[str] = set()
        self._wanted = asyncio.Event()
        self._full = asyncio.Event()

    @property
    def ready(self) -> int:
        """How many can be taken."""
        return len(self._blank)

    async def take(self) -> Machine | None:
        """A blank sandbox that answers, if there is one. The caller uses it, or gives it to `discard`."""
        self._full.clear()
        self._wanted.set()
        while self._blank:
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

    async def claim(self, owner: str) -> Machine | None:
        """A blank sandbox that is the owner's from now on, if there is one."""
        if self._driver.capabilities.pools:
            return await self._claim_kept(owner)
        while (blank := await self.take()) is not None:
            try:
                await self._driver.start(blank.name, owner)
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

    def discard(self, machine: Machine) -> None:
        """It is of no use: it is deleted in the background."""
        machine.close()
        self._unwanted.add(machine.name)
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
        """Take in the blank ones that outlived a service before, as far as there is room; delete the others."""
        if self._driver.capabilities.pools:
            return
        found = [seen for seen in found if self.part.slots == 1 or self.part.has(seen.name)]
        gate = asyncio.Semaphore(_MAX_CONCURRENT_ADOPTS)
        usable = [seen.name for seen in found if seen.state is State.RUNNING and seen.current]
        self._unwanted.update(seen.name for seen in found if seen.name not in usable)

        async def adopt(name: str) -> None:
            async with gate:
                try:
                    if len(self._blank) < self.size:
                        await self._bring_in(name, _ADOPT_SECONDS)
                        return
                except Exception as error:  # noqa: BLE001 — whatever ails it, nobody has used it
                    log.warning("a blank sandbox from before cannot be used: %s", error)
                self._unwanted.add(name)

        await asyncio.gather(*map(adopt, usable))
        while len(self._blank) > self.size:
            self.discard(self._blank.pop())
        await self._delete_unwanted()

    def put_back(self, machine: Machine) -> None:
        """One that was taken and is as blank as before."""
        self._blank.appendleft(machine)

    async def keep_full(self) -> None:
        """Runs for as long as the fleet does."""
        while True:
            self._wanted.clear()
            await self._clear_away()
            if len(self._blank) >= self.size:
                await self._rest()
                continue
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
                self._unwanted.add(name)
                await self._delete_unwanted()
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

    async def _clear_away(self) -> None:
        """Delete those that died. One that dies as soon as it is made must not be made again without pause."""
        dead = [machine for machine in self._blank if not machine.alive]
        for machine in dead:
            log.warning("a blank sandbox ended by itself", extra={"sandbox": machine.name})
            self._blank.remove(machine)
            self._full.clear()
            self.discard(machine)
        await self._delete_unwanted()
        if dead:
            await asyncio.sleep(_REST_AFTER_DEATH)

    async def _rest(self) -> None:
        """Until something changes; what could not be deleted is tried again after a while."""
        self._full.set()
        try:
            async with asyncio.timeout(_REST_AFTER_FAILURE if self._unwanted else None):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _delete_unwanted(self) -> None:
        for name in list(self._unwanted):
            try:
                await self._driver.delete(name)
            except (SandboxError, OSError) as error:
                log.error("a blank sandbox could not be deleted: %s", error, extra={"sandbox": name})
            else:
                self._unwanted.discard(name)
