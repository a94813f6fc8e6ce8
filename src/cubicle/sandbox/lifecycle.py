"""What becomes of sandboxes, for those who want to know: the journal, and whoever keeps something for a chat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakSet

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal, no_journal
from cubicle.log import chat_fields
from cubicle.machine.errors import Gone, SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.clock import ServiceClock
from cubicle.sandbox.driver import Driver, SandboxSeen, State
from cubicle.sandbox.slot import Slot

log = logging.getLogger(__name__)

BY_HAND = "removed by hand"
_MAX_REASON = 500
_LOOK_SECONDS = 8.0
_PAUSES = (0.2, 0.4, 0.8, 1.6)
"""After which a sandbox that is up, but has lost its connection, has failed."""
_LOST = "It ended, or the connection to it was lost."


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """Something that became of a sandbox."""

    what: str
    """created, started, stopped, failed, removed (to the trash), deleted (for good)."""
    reason: str
    digest: str
    """Of the chat."""
    chat: Chat | None = None
    """None where only the digest is known, and where a removal was told of before."""


Listener = Callable[[LifecycleEvent], Awaitable[None] | None]


class Lifecycle:
    """Tells of starts, stops and removals."""

    def __init__(self, journal: Journal | None, clock: ServiceClock, driver: Driver) -> None:
        self._driver = driver
        self._journal = journal or no_journal()
        self.reading: Callable[[], float | None] = lambda: clock.now() if clock.is_calm else None
        """The service's clock, by which things age; None while nothing is to be dropped."""
        self._journal.attend(self.reading)
        self._listeners: list[Listener] = []
        self.starts = dict.fromkeys(("created", "started"), 0)
        """How many sandboxes were made for a chat, and how many of stopped chats were started again."""
        self._on_removed: list[Callable[[Chat], Awaitable[None] | None]] = []
        self._seen_removed: WeakSet[Machine] = WeakSet()
        """Lost connections to sandboxes of which was told that they were removed."""

    def on_removed(self, callback: Callable[[Chat], Awaitable[None] | None]) -> None:
        """Call back when a chat is removed: whatever is kept for a chat ends there, or is bounded otherwise."""
        self._on_removed.append(callback)

    def listen(self, listener: Listener) -> None:
        """Call back with everything that becomes of a sandbox, by whomever: before the one who did it hears that it is
        done, or when it is noticed."""
        self._listeners.append(listener)

    async def _tell(self, what: str, reason: str, digest: str, chat: Chat | None = None) -> None:
        event = LifecycleEvent(what, reason[:_MAX_REASON], digest, chat)
        for listener in self._listeners:
            try:
                done = listener(event)
                if done is not None:
                    await done
            except Exception:
                log.exception("an event of a sandbox was not taken", extra=chat_fields(chat))

    async def record(self, slot: Slot, what: str, reason: str = "") -> None:
        """Write down what became of a chat's sandbox."""
        if what in self.starts:
            self.starts[what] += 1
        if slot.chat is not None:
            self._record(slot.chat, what, reason, slot.name)
            await self._tell(what, reason, slot.digest, slot.chat)

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """A service of every sandbox: what its chat's first calls recorded is on disk before the sandbox is used."""
        with self._journal.with_sandbox(chat):
            await self._journal.settle(chat)
            yield
        if self._listeners and not machine.hung_up:
            what, reason = await self._ending(machine)
            if what != "removed" or self._notice_removed(machine):
                await self._tell(what, reason, chat.digest, chat)

    def _notice_removed(self, machine: Machine) -> bool:
        """Whether it is for the first time that the sandbox of this connection is seen to be removed."""
        if machine in self._seen_removed:
            return False
        self._seen_removed.add(machine)
        return True

    async def _ending(self, machine: Machine) -> tuple[str, str]:
        """What became of a sandbox whose connection was lost, and why."""
        if machine.offence:
            return "failed", f"Its guest broke a rule of the connection: {machine.offence}."
        if machine.given_up:
            return "failed", "It did not answer any more."
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                seen = await self._seen(machine.name)
                for pause in _PAUSES:
                    if seen is None or seen.state is not State.RUNNING:
                        break
                    await asyncio.sleep(pause)  # it may be being stopped
                    seen = await self._seen(machine.name)
        except (SandboxError, TimeoutError):
            return "failed", _LOST
        if seen is None:
            return "removed", "Another program removed it."
        if seen.state is State.STOPPED:
            return "stopped", "It ended, or another program stopped it."
        return "failed", seen.reason or _LOST

    async def explained(self, error: SandboxError, slot: Slot) -> SandboxError:
        """What a call that lost its sandbox is told: why it is gone as well, as far as its driver knows."""
        machine = slot.machine
        if not isinstance(error, Gone) or machine is None or machine.stopped or machine.offence:
            return error
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                why = await self._driver.why_ended(machine.name)
        except (SandboxError, TimeoutError):
            return error
        return Gone(f"{error} {why}") if why else error

    async def _seen(self, name: str) -> SandboxSeen | None:
        return next((found for found in await self._driver.list() if found.name == name), None)

    def _record(self, chat: Chat, what: str, reason: str, sandbox: str) -> None:
        fields = {"what": what, "reason": reason[:_MAX_REASON], "sandbox": sandbox}
        self._journal.record(chat, "lifecycle", fields, hold=not sandbox)

    def note_replaced(self, chat: Chat, before: str, now: str) -> None:
        """A call finds another sandbox than when its chat was last seen, or none: the command line removed that one,
        and the journal was not told yet. It is no "removed" any more, after which what was before counts for nothing:
        the call is in the journal already."""
        if before and before != now:
            self._record(chat, "replaced", BY_HAND, before)

    async def tell_removed(
        self, chat: Chat | None, sandbox: str, reason: str, *, gone: bool, machine: Machine | None = None
    ) -> None:
        """A chat was removed; `gone`: not to the trash, but for good, and its journal with it. `machine`: the last
        connection to it, whose end may have told of it."""
        if chat is None:
            return
        if gone:
            self._journal.forget(chat)
        else:
            self._record(chat, "removed", reason, sandbox)
            self._journal.release(chat)
        if machine is None or self._notice_removed(machine):
            await self._tell("deleted" if gone else "removed", reason, chat.digest, chat)
        elif gone:
            await self._tell("deleted", reason, chat.digest)
        for callback in self._on_removed:
            try:
                done = callback(chat)
                if done is not None:
                    await done
            except Exception:
                log.exception("something of a removed chat is left", extra=chat_fields(chat))

    async def tell_deleted(self, digest: str) -> None:
        """The last that there was of a chat was deleted from the trash."""
        self._journal.forget_digest(digest)
        await self._tell("deleted", "", digest)
