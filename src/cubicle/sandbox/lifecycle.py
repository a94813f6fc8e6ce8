"""What becomes of sandboxes, for those who want to know: the journal, and whoever keeps something for a chat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal, no_journal
from cubicle.log import chat_fields
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.clock import ServiceClock
from cubicle.sandbox.driver import Driver, State
from cubicle.sandbox.slot import Slot

log = logging.getLogger(__name__)

_MAX_REASON = 500
_LOOK_SECONDS = 5.0
_LOST = "It ended, or the connection to it was lost."

Changed = Callable[[Chat, str, str], Awaitable[None]]
"""Told of the chat, what became of its sandbox, and why."""


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """Something that became of a sandbox."""

    what: str
    """created, started, stopped, failed, removed (to the trash), deleted."""
    reason: str
    digest: str
    """Of the chat."""
    chat: Chat | None = None
    """None where only the digest is known."""


class Lifecycle:
    """Tells of starts, stops and removals."""

    def __init__(self, journal: Journal | None, clock: ServiceClock, driver: Driver) -> None:
        self._driver = driver
        self._journal = journal or no_journal()
        self.reading: Callable[[], float | None] = lambda: clock.now() if clock.is_calm else None
        """The service's clock, by which things age; None while nothing is to be dropped."""
        self._journal.attend(self.reading)
        self._listeners: list[Callable[[LifecycleEvent], None]] = []
        self._on_removed: list[Callable[[Chat], Awaitable[None] | None]] = []
        self._on_change: list[Changed] = []

    def on_removed(self, callback: Callable[[Chat], Awaitable[None] | None]) -> None:
        """Call back when a chat is removed: whatever is kept for a chat ends there, or is bounded otherwise."""
        self._on_removed.append(callback)

    def on_change(self, callback: Changed) -> None:
        """Call back when a sandbox is created, started, stopped, failed or removed, by whomever: before the one who did
        it hears that it is done, or when it is noticed."""
        self._on_change.append(callback)

    def listen(self, listener: Callable[[LifecycleEvent], None]) -> None:
        """Call back with everything that the service does to a sandbox; the listener must not wait."""
        self._listeners.append(listener)

    def _tell(self, event: LifecycleEvent) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("an event of a sandbox was not taken", extra=chat_fields(event.chat))

    async def _tell_change(self, chat: Chat, what: str, reason: str) -> None:
        for callback in self._on_change:
            try:
                await callback(chat, what, reason[:_MAX_REASON])
            except Exception:
                log.exception("a change of a sandbox was not told", extra=chat_fields(chat))

    async def record(self, slot: Slot, what: str, reason: str = "") -> None:
        """Write down what became of a chat's sandbox."""
        if slot.chat is not None:
            self._record(slot.chat, what, reason, slot.name)
            await self._tell_change(slot.chat, what, reason)

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """A service of every sandbox: what its chat's first calls recorded is on disk before the sandbox is used."""
        with self._journal.with_sandbox(chat):
            await self._journal.settle(chat)
            yield
        if self._on_change and not machine.hung_up:
            await self._tell_change(chat, *await self._ending(machine))

    async def _ending(self, machine: Machine) -> tuple[str, str]:
        """What became of a sandbox whose connection was lost, and why."""
        if machine.offence:
            return "failed", f"Its guest broke a rule of the connection: {machine.offence}."
        if machine.given_up:
            return "failed", "It did not answer any more."
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                seen = [found for found in await self._driver.list() if found.name == machine.name]
        except (SandboxError, TimeoutError):
            return "failed", _LOST
        if not seen:
            return "removed", "Another program removed it."
        if seen[0].state is State.STOPPED:
            return "stopped", "It ended, or another program stopped it."
        return "failed", seen[0].reason or _LOST

    def _record(self, chat: Chat, what: str, reason: str, sandbox: str) -> None:
        self._tell(LifecycleEvent(what, reason[:_MAX_REASON], chat.digest, chat))
        fields = {"what": what, "reason": reason[:_MAX_REASON], "sandbox": sandbox}
        self._journal.record(chat, "lifecycle", fields, hold=not sandbox)

    async def tell_removed(self, chat: Chat | None, sandbox: str, reason: str, *, gone: bool) -> None:
        """A chat was removed; `gone`: not to the trash, but for good, and its journal with it."""
        if chat is None:
            return
        if gone:
            self._tell(LifecycleEvent("deleted", reason, chat.digest, chat))
            self._journal.forget(chat)
        else:
            self._record(chat, "removed", reason, sandbox)
            self._journal.release(chat)
        await self._tell_change(chat, "removed", reason)
        for callback in self._on_removed:
            try:
                done = callback(chat)
                if done is not None:
                    await done
            except Exception:
                log.exception("something of a removed chat is left", extra=chat_fields(chat))

    async def tell_trashed(self, slot: Slot) -> None:
        """The command line removed a chat's sandbox that was not connected to; of another one `attached` tells."""
        if slot.chat is not None and slot.machine is None:
            await self._tell_change(slot.chat, "removed", "Another program removed it.")

    def tell_deleted(self, digest: str) -> None:
        """The last that there was of a chat was deleted from the trash."""
        self._tell(LifecycleEvent("deleted", "", digest))
        self._journal.forget_digest(digest)
