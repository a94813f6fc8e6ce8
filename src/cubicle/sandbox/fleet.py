"""All sandboxes, one per chat: which one, and how long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Self

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.guest.operations import Usage
from cubicle.journal.journal import Journal
from cubicle.log import chat_fields
from cubicle.machine.errors import NoSpace, NotRunning, SandboxError, StartFailed, StartRefused
from cubicle.machine.machine import Machine
from cubicle.sandbox.adoption import ANSWER_SECONDS, Adoption
from cubicle.sandbox.chat_index import ChatIndex, ChatRecord
from cubicle.sandbox.clock import DAY, Clock
from cubicle.sandbox.driver import CONDITIONS, Condition, Driver, SandboxSeen, State
from cubicle.sandbox.expiry import Ages, Expiry
from cubicle.sandbox.free_space import FreeSpace
from cubicle.sandbox.idle_ladder import IdleLadder
from cubicle.sandbox.lifecycle import Lifecycle
from cubicle.sandbox.pool_demand import PoolDemand
from cubicle.sandbox.removals import Removals
from cubicle.sandbox.sandbox_services import Admission, SandboxService, SandboxServices
from cubicle.sandbox.sharing import Alone, Sharing
from cubicle.sandbox.slot import Overview, Slot, forget_empty, unforeseen
from cubicle.sandbox.trash import Discarded, TrashNote
from cubicle.sandbox.warm_pool import Furnish, WarmPool, connect

log = logging.getLogger(__name__)

_START_LIMIT = 60.0
_TURN_LIMIT = 240.0
"""For its turn among the starts: on a busy host a hundred at once take longer than one may."""
_TOUCH_EVERY = 30.0
_NOT_MADE = "This chat has no sandbox yet: the first tool call or upload makes one."


class NoSandbox(SandboxError):
    """The chat has no sandbox, and the caller did not want one made."""


class Asleep(SandboxError):
    """The chat's sandbox is not up, and the caller did not want it started; the message says why it is not."""


class Fleet:
    """Hands out leases on sandboxes: makes, wakes, stops and removes them."""

    def __init__(
        self,
        driver: Driver,
        chat_index: ChatIndex,
        *,
        pool_size: int = 2,
        freeze_after: float = 60,
        pool_max: int = 0,
        idle_after: float = 24 * 3600,
        remove_after: float = 30 * DAY,
        trash_after: float = 7 * DAY,
        clock: Clock | None = None,
        clock_file: Path | None = None,
        sandbox_services: Sequence[SandboxService] = (),
        furnish: Furnish | None = None,
        space: FreeSpace | None = None,
        journal: Journal | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._driver = driver
        self._sharing = sharing or Alone()
        self._space = space
        self._chat_index = chat_index
        self._ages = Ages(idle_after, remove_after, trash_after)
        self._clock = self._ages.clock(clock_file, clock)
        self._slots: dict[str, Slot] = {}
        self.lifecycle = Lifecycle(journal, self._clock, driver)
        self._sandbox_services = SandboxServices([self.lifecycle.attached, *sandbox_services])
        self.on_removed = self.lifecycle.on_removed
        removals = Removals(driver, chat_index, self._slots, self.lifecycle, self._slot_of, self._sharing.claim_one)
        self._expiry = Expiry(
            driver,
            self._clock,
            self._ages,
            self._slots,
            used=self._used,
            stop=self._stop,
            remove=self._expire,
            deleted=self.lifecycle.tell_deleted,
            removals=removals,
            empties_trash=self._sharing.part.slot == 1,
        )
        self.ladder = IdleLadder(driver, self._slots, freeze_after)
        self._starts = FairSlots(total=4, of_tenant=3, of_chat=8)
        self.pool = WarmPool(driver, PoolDemand(pool_size, pool_max), furnish, self._sharing.part)
        self._group = asyncio.TaskGroup()
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = False
        self._adoption = Adoption(driver, self._slots, self._sandbox_services)
        self.admission: Admission = lambda chat: nullcontext()
        self.hold = ""
        """Why no sandbox is started for a chat at present; empty if they are."""

    async def __aenter__(self) -> Self:
        await self._driver.open()
        await asyncio.to_thread(self._chat_index.open)
        await asyncio.to_thread(self._clock.open)
        await self._group.__aenter__()
        found = await self._find()
        self._keepers = [
            self._group.create_task(self._adoption.run(self._group, found), name="adopt"),
            self._group.create_task(self.pool.run(found), name="pool"),
            self._group.create_task(self._expiry.run(), name="expiry"),
            self._group.create_task(self.ladder.run(), name="idle ladder"),
        ]
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Let go of everything; the sandboxes stay up for the next service."""
        self._closing = True
        for task in self._keepers:
            task.cancel()
        for slot in self._slots.values():
            if slot.starting is not None:
                slot.starting.cancel()
        for slot in self._slots.values():
            slot.hang_up()
        self.pool.close()
        await self._group.__aexit__(None, None, None)
        await self._expiry.close()
        await self._driver.close()

    @asynccontextmanager
    async def lease(self, chat: Chat, *, create: bool = True, wake: bool = True) -> AsyncIterator[Machine]:
        """Use the chat's sandbox; it stays up for as long as the block lasts. NoSandbox unless one may be made.

        Without `wake`, one that was stopped stays so: Asleep. One that died by itself is started again, and what fails
        in the block with a SandboxError is no use: a page that tries again and again keeps nothing up.
        """
        slot = self._slots.get(chat.digest) or (None if create else await self._look_for(chat))
        self._sharing.require(chat.digest)
        if slot is None and not create:
            raise NoSandbox(_NOT_MADE)
        if slot is None:
            slot = self._slots.setdefault(chat.digest, Slot(chat.digest, last_used=self._clock.now()))
        if not wake:
            await self._require_up(slot)
            self._sharing.require(chat.digest)
        slot.chat = chat
        slot.leases += 1
        counts = True
        try:
            machine = slot.live or await self._bring_up(slot, chat, create)
            async with self.ladder.awake(slot):
                yield machine
            if self._space is not None and self._space.tight and slot.live is not None:
                await self._driver.flush(slot.name)
        except SandboxError as error:
            counts = wake
            raise await self.lifecycle.explained(error, slot) from None
        finally:
            slot.leases -= 1
            if counts:
                self._used(slot)
            if not slot.name and not slot.leases:
                forget_empty(self._slots, slot)

    @asynccontextmanager
    async def look(self, chat: Chat, *, hold: bool = False) -> AsyncIterator[Machine]:
        """See the chat's sandbox without using it: nothing is started, and its idle time goes on. NoSandbox, Asleep.

        It may be stopped meanwhile, which is `Gone`; with `hold`, for what takes its time, not for being idle.
        """
        slot = self._slots.get(chat.digest)
        if slot is None or not (slot.name or slot.starting):
            raise NoSandbox(_NOT_MADE)
        machine = slot.live or await self._adoption.machine(slot)
        if machine is None:
            raise Asleep(slot.why_down)
        slot.held += hold
        try:
            async with self.ladder.awake(slot):
                yield machine
        finally:
            slot.held -= hold

    async def usage(self, chat: Chat) -> Usage | None:
        """What the chat's sandbox uses, if it is up; one that is frozen is not woken to tell it."""
        slot = self._slots.get(chat.digest)
        return None if slot is None else await self.ladder.usage(slot)

    def has(self, chat: Chat) -> bool:
        """Whether the chat has a sandbox, up or not."""
        slot = self._slots.get(chat.digest)
        return slot is not None and bool(slot.name)

    def state(self, chat: Chat) -> Overview | None:
        slot = self._slots.get(chat.digest)
        return None if slot is None else slot.overview(self._clock.now())

    def condition(self, chat: Chat) -> Condition:
        """The state of the chat's sandbox in a word; "none" for a chat that has none."""
        seen = self.state(chat)
        made = seen is not None and (seen.name or seen.state is not State.STOPPED)
        return CONDITIONS[seen.state] if seen is not None and made else "none"

    def overview(self) -> list[Overview]:
        """All sandboxes of the service, those of others as they were last seen."""
        own = self.own_overview()
        return [*own, *(seen for seen in self._sharing.elsewhere() if seen.digest not in self._slots)]

    def own_overview(self) -> list[Overview]:
        return [slot.overview(self._clock.now()) for slot in self._slots.values() if slot.name or slot.reason]

    async def stop(self, chat: Chat) -> None:
        """Stop the chat's sandbox now; its files stay."""
        slot = self._slots.get(chat.digest)
        if slot is not None and slot.name:
            async with slot.lock:
                if await self._driver.find(slot.digest, slot.name) == slot.name:  # or it is another chat's by now
                    slot.say_stopped("The operator stopped this sandbox.")
                    await self._stop(slot)
                    slot.reason = "The operator stopped it."

    async def remove(self, chat: Chat, *, now: bool = False) -> bool:
        """Move the chat's sandbox to the trash with everything in it, or delete it `now`; False if there is none."""
        slot = self._slots.get(chat.digest) or await self._look_for(chat)
        if slot is None:
            return False
        if not await self._is_there(slot):
            if not slot.leases:
                self._slots.pop(chat.digest, None)
            return bool(slot.reason)  # one that never started is shown until it is removed
        async with slot.lock:
            slot.say_stopped("The operator removed this sandbox.")
            await self._remove(slot, "removed by hand", now=now)
        return True

    async def take_in(self, chat: Chat) -> None:
        """The chat was another's until now: be connected to its sandbox, if that is up."""
        slot = await self._look_for(chat)
        if slot is not None:
            slot.last_used = self._clock.last_use(slot.key)
            await self._adoption.take_in(self._group, slot)

    def let_go(self, digest: str) -> bool:
        """Leave the chat to another; False, and nothing happens, while somebody uses it."""
        return self._adoption.let_go(self._slots, digest)

    def lose(self, digest: str) -> None:
        """The chat is another's, who has taken it: what is done for it here ends."""
        self._adoption.let_go(self._slots, digest, by_force=True)

    def holds(self, digest: str) -> bool:
        return digest in self._slots

    async def chat_of(self, digest: str) -> Chat | None:
        """The chat of this digest, as far as it is written down."""
        return await asyncio.to_thread(self._chat_index.chat_of, digest)

    async def trash(self) -> Sequence[Discarded]:
        """The removed sandboxes that can still be restored."""
        return await self._driver.discarded()

    # ---- starting

    async def _require_up(self, slot: Slot) -> None:
        """Asleep for one that was stopped, here or by another program; not for one that died, or whose line broke."""
        if slot.live is not None or slot.starting is not None:
            return
        if not slot.name:
            raise NoSandbox(_NOT_MADE)
        if slot.state is State.RUNNING:
            seen = [found.state for found in await self._driver.list() if found.name == slot.name]
            if State.STOPPED not in seen and slot.state is State.RUNNING:
                return
        raise Asleep(slot.why_down)

    async def _bring_up(self, slot: Slot, chat: Chat, create: bool) -> Machine:
        """One start at a time for a chat, whoever asks; a caller that goes away does not take it from the others."""
        if not create and slot.starting is None and not await self._is_there(slot):
            raise NoSandbox(_NOT_MADE)
        if self._closing:
            raise StartFailed("The service is stopping.")
        if slot.starting is None:
            slot.starting = self._group.create_task(self._start_in_turn(slot, chat), name=f"start {slot.digest}")
            slot.starting.add_done_callback(lambda task: setattr(slot, "starting", None))
        outcome = await asyncio.shield(slot.starting)
        if isinstance(outcome, SandboxError):
            raise type(outcome)(str(outcome))  # one of its own for each caller
        return outcome

    async def _start_in_turn(self, slot: Slot, chat: Chat) -> Machine | StartFailed:
        try:
            async with self.admission(chat):
                return await self._start(slot, chat) if slot.leases else StartFailed("Nobody waits for it any more.")
        except StartRefused as error:
            return error

    async def _start(self, slot: Slot, chat: Chat) -> Machine | StartFailed:
        async with slot.lock:
            if slot.live is not None:
                return slot.live
            offence = slot.machine.offence if slot.machine is not None else ""
            slot.hang_up()
            slot.state, slot.reason = State.STARTING, ""
            began = time.perf_counter()
            try:
                async with asyncio.timeout(_TURN_LIMIT + _START_LIMIT):
                    if offence:
                        log.error("the sandbox's guest broke a rule: %s", offence, extra={"chat": chat.id})
                        await self._driver.stop(slot.name)
                    machine = await self._machine_for(slot, chat)
            except NoSpace as error:
                slot.state, slot.reason = State.STOPPED, str(error)
                return error  # told to the operator once, not at each call
            except TimeoutError:
                slot.state, slot.reason = State.FAILED, f"It did not start within {_START_LIMIT:g} s."
            except SandboxError as error:
                slot.state, slot.reason = State.FAILED, str(error)
            except Exception as error:
                log.exception("a start failed in a way nobody foresaw", extra=chat_fields(chat))
                slot.state, slot.reason = State.FAILED, unforeseen(error)
            else:
                machine.just_started, slot.started = slot.started, False
                await self._sandbox_services.start(self._group, chat, machine)
                slot.machine, slot.state = machine, State.RUNNING
                ms = round((time.perf_counter() - began) * 1000, 1)
                log.info("sandbox up", extra=chat_fields(chat) | {"ms": ms})
                if machine.just_started:
                    await self.lifecycle.record(slot, "created" if slot.made else "started")
                return machine
            log.error("sandbox failed to start: %s", slot.reason, extra=chat_fields(chat))
            await self.lifecycle.record(slot, "failed", slot.reason)
            return StartFailed(f"The sandbox of this chat could not be started. {slot.reason}")

    async def _machine_for(self, slot: Slot, chat: Chat) -> Machine:
        # Not what it was when it was last seen: it may have been removed, or restored, by the command line.
        before, slot.name = slot.name, await self._driver.find(chat.digest, slot.name) or ""
        self.lifecycle.note_replaced(chat, before, slot.name)
        if slot.name and (machine := await self._reconnected(slot, chat)) is not None:
            slot.since = await asyncio.to_thread(self._chat_index.enter, chat)
            return machine
        if self.hold:
            raise NoSpace(self.hold)
        if self._space is not None:
            await asyncio.to_thread(self._space.require)
        slot.since, slot.started = await asyncio.to_thread(self._chat_index.enter, chat), True
        slot.made = not slot.name
        if not slot.name and (blank := await self.pool.claim(chat)) is not None:
            slot.name = blank.name
            return blank
        name = slot.name or self.pool.part.new_name()
        async with self.pool.start_elsewhere(), self._starts.hold(chat), asyncio.timeout(_START_LIMIT):
            await self._driver.start(name, chat.digest)
            slot.name = name
            try:
                return await connect(self._driver, name)
            except SandboxError:  # once more from the beginning
                await self._driver.stop(name)
                await self._driver.start(name, chat.digest)
                return await connect(self._driver, name)

    async def _reconnected(self, slot: Slot, chat: Chat) -> Machine | None:
        """The machine of one that is up and answers. One that does not, or has another guest, is stopped."""
        given_up, slot.given_up = slot.given_up, False
        why = "it did not answer before"
        try:
            if not given_up:
                return await connect(self._driver, slot.name, patience=ANSWER_SECONDS)
        except NotRunning:
            return None
        except SandboxError as error:
            why = str(error)
        log.warning("a sandbox is restarted, its processes end: %s", why, extra={"chat": chat.id})
        await self._driver.stop(slot.name)
        return None

    # ---- ending

    async def _stop(self, slot: Slot) -> None:
        slot.state = State.STOPPED  # first: who finds the line broken must not take it for a crash
        reason = slot.machine.stopped if slot.machine is not None else ""
        slot.hang_up()
        await self._driver.stop(slot.name)
        slot.state, slot.reason = State.STOPPED, ""
        await self.lifecycle.record(slot, "stopped", reason)

    async def _remove(self, slot: Slot, reason: str, *, now: bool = False) -> None:
        slot.state = State.STOPPED
        slot.hang_up()
        gone = now or not self._ages.trash_after
        if slot.name and gone:
            await self._driver.delete(slot.name)
        elif slot.name:
            await self._driver.discard(slot.name, TrashNote(slot.chat, reason, time.time()))
        self._chat_index.remove(slot.digest)
        name, slot.name, slot.state, slot.reason = slot.name, "", State.STOPPED, ""
        if not slot.leases:
            self._slots.pop(slot.digest, None)
        await self.lifecycle.tell_removed(slot.chat, name, reason, gone=gone)

    async def _expire(self, slot: Slot) -> None:
        log.info("removed: nobody used it", extra=chat_fields(slot.chat))
        await self._remove(slot, "not used for DATA_MAX_AGE_DAYS")

    def _used(self, slot: Slot) -> None:
        now = self._clock.now()
        if now - slot.last_used > _TOUCH_EVERY:
            self._chat_index.touch(slot.digest)
        slot.last_used = now

    # ---- keeping

    def _slot_of(self, found: SandboxSeen, record: ChatRecord | None) -> Slot:
        slot = Slot(found.owner or "", name=found.name, state=found.state, reason=found.reason)
        if record is not None:
            slot.chat, slot.since = record.chat, record.since
        slot.last_used = self._clock.last_use(slot.key)
        return slot

    async def _is_there(self, slot: Slot) -> bool:
        """Whether the chat has a sandbox right now: the command line may have removed or restored it."""
        async with slot.lock:
            slot.name = await self._driver.find(slot.digest, slot.name) or ""
        return bool(slot.name)

    async def _look_for(self, chat: Chat) -> Slot | None:
        """The sandbox of a chat that has none as far as is known: the command line may have restored it."""
        name = await self._driver.find(chat.digest)
        if name is None:
            return None
        since = await asyncio.to_thread(self._chat_index.enter, chat)
        found = Slot(chat.digest, chat=chat, name=name, since=since, last_used=self._clock.now())
        return self._slots.setdefault(chat.digest, found)

    async def _find(self) -> Sequence[SandboxSeen]:
        """Note what a service before left. Records of chats that the driver does not list stay: it may do so later."""
        records = await asyncio.to_thread(self._chat_index.read)
        seen = await self._driver.list()
        mine = await self._sharing.claim([found.owner for found in seen if found.owner is not None])
        for found in seen:
            if found.owner is not None and found.owner in mine:
                self._slots[found.owner] = self._slot_of(found, records.get(found.owner))
        return [found for found in seen if found.owner is None or found.owner in mine]
