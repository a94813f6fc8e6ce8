"""What becomes of a sandbox that nobody uses, before it is stopped: it is frozen, then its memory is given back.

Running → frozen → memory given back → stopped (expiry.py). Each use lets it run on first. A sandbox in which a program
runs is never frozen: the driver sees to that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from cubicle.guest.operations import Usage
from cubicle.log import chat_fields
from cubicle.machine.errors import SandboxError
from cubicle.sandbox.driver import Driver, State
from cubicle.sandbox.slot import Slot

log = logging.getLogger(__name__)

FROZEN_TIMES = 10
"""Memory is given back of what was frozen for so many times as long as it was idle before."""
_SWEEP_SECONDS = 15.0
_ASK_SECONDS = 3.0
_THAW_SECONDS = 5.0


class IdleLadder:
    """One task of the fleet. `seconds` without use until a sandbox is frozen; 0: never.

    It counts by the clock that nobody can set.
    """

    def __init__(self, driver: Driver, slots: Mapping[str, Slot], seconds: float) -> None:
        self._driver = driver
        self._slots = slots
        self._seconds = seconds

    @property
    def frozen(self) -> int:
        """How many are frozen."""
        return sum(slot.rest.frozen for slot in self._slots.values())

    @asynccontextmanager
    async def awake(self, slot: Slot) -> AsyncIterator[None]:
        """Let it run on if it is frozen, and not be frozen for as long as the block lasts."""
        rest = slot.rest
        rest.uses += 1
        try:
            if rest.frozen:
                await self._thaw(slot)
            yield
        finally:
            rest.uses -= 1
            rest.since = time.monotonic()

    async def usage(self, slot: Slot) -> Usage | None:
        """What it uses; of a frozen one, what it used when it was frozen: it is not woken for that."""
        rest = slot.rest
        if rest.frozen and rest.usage is not None:
            return rest.usage.replace(uptime=rest.usage.uptime + time.monotonic() - rest.measured)
        if rest.frozen or slot.live is None:
            return None
        rest.uses += 1  # and no use: its idle time goes on
        try:
            return await slot.live.stats()
        finally:
            rest.uses -= 1

    async def run(self) -> None:
        """Runs for as long as the fleet does."""
        if not self._seconds or not self._driver.capabilities.freezes:
            return
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._seconds / 4))
            await self.sweep()

    async def sweep(self) -> None:
        """Freeze what is idle; give back the memory of what has been frozen for long."""
        for slot in list(self._slots.values()):
            try:
                await self._sweep_one(slot)
            except Exception:
                log.exception("an idle sandbox could not be frozen", extra=chat_fields(slot.chat))

    async def _sweep_one(self, slot: Slot) -> None:
        rest, idle = slot.rest, time.monotonic() - slot.rest.since
        if rest.frozen and not rest.given_back and idle >= self._seconds * (1 + FROZEN_TIMES):
            rest.given_back = True
            await self._driver.give_memory_back(slot.name)
        elif idle >= self._seconds and self._is_idle(slot):
            async with slot.lock:
                await self._freeze(slot)

    def _is_idle(self, slot: Slot) -> bool:
        used = slot.rest.uses or slot.in_use
        return not used and not slot.rest.frozen and slot.live is not None and slot.state is State.RUNNING

    async def _freeze(self, slot: Slot) -> None:
        """One that a program runs in is looked at again after the same time."""
        rest, machine = slot.rest, slot.live
        before, rest.since = rest.since, time.monotonic()
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                usage = await machine.stats() if machine is not None else None
        except (SandboxError, TimeoutError):
            return  # it is busy, or ends
        measured = time.monotonic()
        async with rest.turning:
            # From here on whoever comes waits for the end of this, and lets it run on.
            if rest.uses or slot.leases or slot.held or slot.live is not machine:
                return
            rest.frozen, rest.given_back, rest.usage, rest.measured = True, False, usage, measured
            try:
                rest.frozen = await self._driver.freeze(slot.name)
            except BaseException:
                rest.frozen = True  # perhaps: the next use lets it run on
                raise
        if rest.frozen and not rest.uses:
            rest.since = before

    async def _thaw(self, slot: Slot) -> None:
        """Should it fail, the connection finds the guest silent, and tries it again (machine/liveness.py)."""
        async with slot.rest.turning:
            if not slot.rest.frozen:
                return
            try:
                async with asyncio.timeout(_THAW_SECONDS):
                    await self._driver.resume(slot.name)
            except (SandboxError, TimeoutError) as error:
                log.error("a frozen sandbox could not be let run on: %s", error, extra=chat_fields(slot.chat))
            slot.rest.frozen = False
