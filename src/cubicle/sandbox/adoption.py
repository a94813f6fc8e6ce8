"""Connecting to the sandboxes that a service before left up, beside the calls that come meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from cubicle.log import chat_fields
from cubicle.machine.errors import Gone, NotRunning
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver, SandboxSeen, State
from cubicle.sandbox.sandbox_services import SandboxServices
from cubicle.sandbox.slot import Slot
from cubicle.sandbox.warm_pool import connect

log = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""For one that was up before: see `liveness.TIMEOUT`. One that is stopped or frozen takes a few seconds of these."""
_MAX_CONCURRENT = 16
_POLL_SECONDS = 0.02


class Adoption:
    """One that hangs keeps nobody else waiting."""

    def __init__(self, driver: Driver, slots: Mapping[str, Slot], sandbox_services: SandboxServices) -> None:
        self._driver = driver
        self._slots = slots
        self._sandbox_services = sandbox_services
        self._is_over = False

    async def run(self, group: asyncio.TaskGroup, found: Sequence[SandboxSeen]) -> None:
        """Connect to all that are up."""
        gate = asyncio.Semaphore(_MAX_CONCURRENT)

        async def adopt(slot: Slot) -> None:
            async with gate, slot.lock:
                # A call may have been first, or the sandbox be stopped or removed.
                if slot.machine is None and slot.name and slot.state is State.RUNNING:
                    await self._adopt_one(group, slot)

        up = [seen.owner for seen in found if seen.owner is not None and seen.state is State.RUNNING]
        slots = [slot for owner in up if (slot := self._slots.get(owner)) is not None]
        await asyncio.gather(*map(adopt, slots))
        self._is_over = True
        if found:
            log.info("adopted %d sandboxes", len(found))

    async def machine(self, slot: Slot) -> Machine | None:
        """The machine of one that is up and about to be connected to; None for any other."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._is_over and slot.machine is None and slot.state is State.RUNNING:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        return slot.live

    async def take_in(self, group: asyncio.TaskGroup, slot: Slot) -> None:
        """Connect to one that another process had until now, if it is up."""
        async with slot.lock:
            if slot.machine is not None or not slot.name:
                return
            slot.state = State.RUNNING
            try:
                (await self._driver.connect(slot.name)).close()
            except NotRunning:
                slot.state = State.STOPPED
            else:
                await self._adopt_one(group, slot)

    @staticmethod
    def let_go(slots: dict[str, Slot], digest: str, *, by_force: bool = False) -> bool:
        """Leave it to another process; False, and nothing happens, while somebody uses it, unless that has it."""
        slot = slots.get(digest)
        if slot is not None and slot.in_use and not by_force:
            return False
        if slot is not None:
            slot.hang_up()
            del slots[digest]
        return True

    async def _adopt_one(self, group: asyncio.TaskGroup, slot: Slot) -> None:
        """One that cannot be taken over is left as it is, with what runs in it, until somebody calls for it."""
        try:
            machine = await connect(self._driver, slot.name, patience=ANSWER_SECONDS)
        except Exception as error:  # noqa: BLE001 — no reason not to serve the others
            slot.given_up = isinstance(error, Gone)
            log.error("a sandbox from before does not answer: %s", error, extra=chat_fields(slot.chat))
            return
        if slot.chat:
            await self._sandbox_services.start(group, slot.chat, machine)
        slot.machine = machine
