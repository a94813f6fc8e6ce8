"""What is stopped, removed and deleted for its age, and the task that does it.

`fate` decides, from readings of the service clock alone (clock.py); the date has no part in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cubicle.log import chat_fields
from cubicle.sandbox.clock import DAY, QUIET_SECONDS, Clock, ServiceClock
from cubicle.sandbox.driver import Driver, State
from cubicle.sandbox.removals import Removals
from cubicle.sandbox.slot import Slot
from cubicle.sandbox.trash import Discarded

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 60.0
_LAST_LOOK_SECONDS = 5.0
_SAVE_EVERY = 10
"""Sweeps between two times that the clock is saved."""
_GAPS = 30
"""A machine must have been off, by a wrong date, so many times before a chat is removed too early."""


class Fate(StrEnum):
    KEEP = "keep"
    STOP = "stop"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Ages:
    """Seconds by the service clock."""

    idle_after: float
    remove_after: float
    trash_after: float
    """0: what is removed is deleted at once."""

    @property
    def pause(self) -> float:
        """Between two sweeps."""
        shortest = min(self.idle_after, self.remove_after, self.trash_after or self.remove_after)
        return max(0.05, min(_SWEEP_SECONDS, shortest / 4))

    def clock(self, path: Path | None = None, clock: Clock | None = None) -> ServiceClock:
        """The service clock for these ages."""
        max_gap = min(DAY, self.remove_after / _GAPS)
        return ServiceClock(path, clock=clock, max_gap=max_gap, quiet=min(QUIET_SECONDS, self.remove_after))


def fate(ages: Ages, *, idle: float, calm: float, in_use: bool, up: bool) -> Fate:
    """What becomes of a chat's sandbox that was idle for so long, when the clocks were calm for so long."""
    if not in_use and idle >= ages.remove_after and calm >= min(QUIET_SECONDS, ages.remove_after):
        return Fate.REMOVE
    if not in_use and up and idle >= ages.idle_after:
        return Fate.STOP
    return Fate.KEEP


def is_deleted(ages: Ages, *, age: float, calm: float, readable: bool) -> bool:
    """Whether a sandbox that was in the trash for so long is deleted for good."""
    return readable and age >= ages.trash_after and calm >= min(QUIET_SECONDS, ages.trash_after)


class Expiry:
    """The one task that looks after ages."""

    def __init__(
        self,
        driver: Driver,
        clock: ServiceClock,
        ages: Ages,
        slots: Mapping[str, Slot],
        *,
        used: Callable[[Slot], None],
        stop: Callable[[Slot], Awaitable[None]],
        remove: Callable[[Slot], Awaitable[None]],
        deleted: Callable[[str], Awaitable[None]],
        removals: Removals,
        empties_trash: bool = True,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._ages = ages
        self._slots = slots
        self._used = used
        self._stop = stop
        self._remove = remove
        self._deleted = deleted
        self._removals = removals
        self._empties_trash = empties_trash
        """Of several processes over the same sandboxes one does."""
        self._in_trash: dict[str, float] | None = None
        """By key, the readings at which what is in the trash was first seen there; None before the first look."""

    async def run(self) -> None:
        """Runs for as long as the fleet does."""
        while True:
            for _ in range(_SAVE_EVERY):
                await asyncio.sleep(self._ages.pause)
                await self.sweep()
            await self.save()

    async def sweep(self) -> None:
        """Stop what is idle; remove what nobody came back for; delete what was in the trash for long enough."""
        self._clock.tick()
        for slot in list(self._slots.values()):
            try:
                await self._sweep_one(slot)
            except Exception:
                log.exception("sweeping failed", extra={"chat": slot.chat.id if slot.chat else "?"})
        try:
            await self._sweep_trash()
            self._clock.forget(await self._removals.follow_deleted())
        except Exception:
            log.exception("the trash could not be swept")

    async def close(self) -> None:
        """Save for the last time; what another program has just deleted is not written down again."""
        try:
            async with asyncio.timeout(_LAST_LOOK_SECONDS):
                await self._removals.follow_trash({each.name for each in await self._driver.discarded()})
                self._clock.forget(await self._removals.follow_deleted())
        except Exception:
            log.exception("the sandboxes could not be looked at before the end")
        await self.save()

    async def save(self) -> None:
        """Keep the clock and all last uses. One that cannot be written makes chats older than they count, no more."""
        uses = {slot.key: slot.last_used for slot in self._slots.values() if slot.name}
        if self._in_trash is None:
            uses = {**self._clock.uses, **uses}  # not everything was looked at yet
        else:
            uses |= self._in_trash
        try:
            await asyncio.to_thread(self._clock.save, uses)
        except OSError as error:
            log.warning("the ages of chats could not be written down: %s", error.strerror)

    async def _sweep_one(self, slot: Slot) -> None:
        if slot.leases:
            self._used(slot)
        if not slot.name or self._fate(slot) is Fate.KEEP:
            return
        async with slot.lock:
            if await self._removals.follow_given(slot):
                return
            match self._fate(slot):  # it may have been used meanwhile
                case Fate.REMOVE:
                    await self._remove(slot)
                case Fate.STOP:
                    log.info("stopped: idle", extra={"chat": slot.chat.id if slot.chat else "?"})
                    await self._stop(slot)

    def _fate(self, slot: Slot) -> Fate:
        return fate(
            self._ages,
            idle=self._clock.now() - slot.last_used,
            calm=self._clock.calm,
            in_use=slot.leases > 0 or slot.held > 0,
            up=slot.state in (State.RUNNING, State.FAILED),
        )

    async def _sweep_trash(self) -> None:
        found = await self._driver.discarded()
        before, keys = self._in_trash or {}, [_trash_key(each) for each in found]
        self._in_trash = {key: before[key] if key in before else self._clock.last_use(key) for key in keys}
        if before.keys() != self._in_trash.keys():
            await self._removals.follow_trash({each.name for each in found})
        if not self._empties_trash:
            return
        for each in found:
            age, readable = self._clock.now() - self._in_trash[_trash_key(each)], each.note is not None
            if is_deleted(self._ages, age=age, calm=self._clock.calm, readable=readable):
                try:
                    await self._purge(each, found)
                except Exception:
                    log.exception("a sandbox in the trash could not be deleted", extra={"sandbox": each.name})

    async def _purge(self, each: Discarded, found: Sequence[Discarded]) -> None:
        if not await self._driver.purge(each.name):
            return  # those before it took their time: it was restored meanwhile
        log.info("deleted from the trash", extra=chat_fields(each.note.chat if each.note else None))
        in_trash = self._in_trash or {}
        in_trash.pop(_trash_key(each), None)
        others = (_trash_key(other) in in_trash for other in found if other.owner == each.owner)
        if not each.owner or each.owner in self._slots or any(others):
            return
        if await self._removals.has_nothing(each.owner) and each.owner not in self._slots:
            await self._deleted(each.owner)


def _trash_key(each: Discarded) -> str:
    """One that was restored and is removed again is in the trash anew."""
    return f"trash/{each.name}/{each.note.at if each.note else ''}"
