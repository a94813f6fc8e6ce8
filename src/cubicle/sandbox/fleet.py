"""All sandboxes, one per chat: which one, and how long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Self

from cubicle.rules.chats import Chat
from cubicle.sandbox.berth import Berth, Overview
from cubicle.sandbox.driver import Driver, OwnedByAnother, OwnerHasSandbox, SandboxError, Seen, StartFailed, State
from cubicle.sandbox.ledger import Ledger
from cubicle.sandbox.machine import Machine
from cubicle.sandbox.pool import Furnish, Pool, connect, new_name

log = logging.getLogger(__name__)

Attendant = Callable[[Chat, Machine], AbstractAsyncContextManager[None]]
"""Something that lives beside every machine in use: entered before its first lease, left when it is gone."""

_STARTS_AT_ONCE = 4
_CONNECTS_AT_ONCE = 16
_START_LIMIT = 60.0
_ANSWER_SECONDS = 20.0
_TOUCH_EVERY = 30.0


class NoSandbox(SandboxError):
    """The chat has no sandbox, and the caller did not want one made."""


class Fleet:
    """Hands out leases on sandboxes: makes, wakes, stops and removes them."""

    def __init__(
        self,
        driver: Driver,
        ledger: Ledger,
        *,
        pool_size: int = 2,
        idle_after: float = 24 * 3600,
        remove_after: float = 30 * 86400,
        attendants: Sequence[Attendant] = (),
        furnish: Furnish | None = None,
    ) -> None:
        self._driver = driver
        self._ledger = ledger
        self._idle_after = idle_after
        self._remove_after = remove_after
        self._attendants = attendants
        self._berths: dict[str, Berth] = {}
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self.pool = Pool(driver, pool_size, furnish)
        self._group = asyncio.TaskGroup()
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = False

    async def __aenter__(self) -> Self:
        await self._driver.open()
        await asyncio.to_thread(self._ledger.open)
        await self._group.__aenter__()
        await self._adopt()
        self._keepers = [
            self._group.create_task(self.pool.keep_full(), name="pool"),
            self._group.create_task(self._sweep(), name="sweep"),
        ]
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Let go of everything; the sandboxes stay up for the next service."""
        self._closing = True
        for task in self._keepers:
            task.cancel()
        for berth in self._berths.values():
            if berth.starting is not None:
                berth.starting.cancel()
        for berth in self._berths.values():
            self._hang_up(berth)
        self.pool.close()
        await self._group.__aexit__(None, None, None)
        await self._driver.close()

    @asynccontextmanager
    async def lease(self, chat: Chat, *, create: bool = True) -> AsyncIterator[Machine]:
        """Use the chat's sandbox; it stays up for as long as the block lasts. NoSandbox unless one may be made."""
        berth = self._berths.get(chat.digest)
        if berth is None:
            if not create:
                raise NoSandbox("This chat has no sandbox yet.")
            berth = self._berths.setdefault(chat.digest, Berth(chat.digest))
        berth.chat = chat
        berth.leases += 1
        try:
            yield berth.live or await self._bring_up(berth, chat, create)
        finally:
            berth.leases -= 1
            self._used(berth)

    def has(self, chat: Chat) -> bool:
        """Whether the chat has a sandbox, up or not."""
        berth = self._berths.get(chat.digest)
        return berth is not None and bool(berth.name)

    def live(self, chat: Chat) -> Machine | None:
        """The chat's machine if it is up right now, without a lease: for a look, not for work."""
        berth = self._berths.get(chat.digest)
        return None if berth is None else berth.live

    def state(self, chat: Chat) -> Overview | None:
        berth = self._berths.get(chat.digest)
        return None if berth is None else berth.overview()

    def overview(self) -> list[Overview]:
        return [berth.overview() for berth in self._berths.values() if berth.name or berth.reason]

    async def stop(self, chat: Chat) -> None:
        """Stop the chat's sandbox now; its files stay."""
        berth = self._berths.get(chat.digest)
        if berth is not None and berth.name:
            async with berth.lock:
                await self._stop(berth)

    async def remove(self, chat: Chat) -> bool:
        """Remove the chat's sandbox and everything in it; False if there is none."""
        berth = self._berths.get(chat.digest)
        if berth is None:
            return False
        async with berth.lock:
            await self._remove(berth)
        return True

    # ---- starting

    async def _bring_up(self, berth: Berth, chat: Chat, create: bool) -> Machine:
        """One start at a time for a chat, whoever asks; a caller that goes away does not take it from the others."""
        if not create and not berth.name and berth.starting is None:
            raise NoSandbox("This chat has no sandbox yet.")
        if self._closing:
            raise StartFailed("The service is stopping.")
        if berth.starting is None:
            berth.starting = self._group.create_task(self._start(berth, chat), name=f"start {berth.digest}")
            berth.starting.add_done_callback(lambda task: setattr(berth, "starting", None))
        outcome = await asyncio.shield(berth.starting)
        if isinstance(outcome, SandboxError):
            raise StartFailed(str(outcome))  # one of its own for each caller
        return outcome

    async def _start(self, berth: Berth, chat: Chat) -> Machine | StartFailed:
        async with berth.lock:
            if berth.live is not None:
                return berth.live
            self._hang_up(berth)
            berth.state, berth.reason = State.STARTING, ""
            began = time.perf_counter()
            try:
                async with asyncio.timeout(_START_LIMIT):
                    machine = await self._machine_for(berth, chat)
            except TimeoutError:
                berth.state, berth.reason = State.FAILED, f"It did not start within {_START_LIMIT:g} s."
            except SandboxError as error:
                berth.state, berth.reason = State.FAILED, str(error)
            except Exception as error:
                log.exception("a start failed in a way nobody foresaw", extra={"chat": chat.id})
                berth.state, berth.reason = State.FAILED, _unforeseen(error)
            else:
                berth.machine, berth.state = machine, State.RUNNING
                await self._attend(chat, machine)
                log.info("sandbox up", extra={"chat": chat.id, "ms": round((time.perf_counter() - began) * 1000, 1)})
                return machine
            log.error("sandbox failed to start: %s", berth.reason, extra={"chat": chat.id})
            return StartFailed(f"The sandbox of this chat could not be started. {berth.reason}")

    async def _machine_for(self, berth: Berth, chat: Chat) -> Machine:
        berth.since = await asyncio.to_thread(self._ledger.enter, chat)
        if not berth.name:
            while (blank := self.pool.take()) is not None:
                try:
                    await self._driver.start(blank.name, chat.digest)
                except OwnerHasSandbox as found:  # given to the chat by another program: `cubicle rescue`, say
                    if not self.pool.adopt(blank):
                        blank.close()
                        await self._driver.delete(blank.name)
                    berth.name = found.name
                    break
                except SandboxError as error:
                    log.warning("a blank sandbox could not be used: %s", error)
                    blank.close()
                    if not isinstance(error, OwnedByAnother):
                        await self._driver.delete(blank.name)
                    continue
                berth.name = blank.name
                return blank
        name = berth.name or new_name()
        async with self._starts:
            try:
                await self._driver.start(name, chat.digest)
            except OwnerHasSandbox as found:
                name = found.name
                await self._driver.start(name, chat.digest)
            berth.name = name
            try:
                return await connect(self._driver, name, patience=_ANSWER_SECONDS)
            except SandboxError:
                # A guest that does not answer, or one of another version: once more from the start.
                await self._driver.stop(name)
                await self._driver.start(name, chat.digest)
                return await connect(self._driver, name)

    async def _attend(self, chat: Chat, machine: Machine) -> None:
        """Start what lives beside this machine, in a task of its own, and wait until it is ready."""
        if self._attendants:
            ready = asyncio.Event()
            self._group.create_task(self._attended(chat, machine, ready), name=f"attend {machine.name}")
            await ready.wait()

    async def _attended(self, chat: Chat, machine: Machine, ready: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                for attendant in self._attendants:
                    await stack.enter_async_context(attendant(chat, machine))
                ready.set()
                await machine.gone()
        except* SandboxError as errors:
            if machine.alive:
                log.error("what attends the sandbox failed: %s", errors.exceptions, extra={"chat": chat.id})
        except* Exception:
            log.exception("what attends the sandbox failed", extra={"chat": chat.id})
        finally:
            ready.set()

    # ---- ending

    def _hang_up(self, berth: Berth) -> None:
        if berth.machine is not None:
            berth.machine.close()
            berth.machine = None

    async def _stop(self, berth: Berth) -> None:
        self._hang_up(berth)
        await self._driver.stop(berth.name)
        berth.state, berth.reason = State.STOPPED, ""

    async def _remove(self, berth: Berth) -> None:
        self._hang_up(berth)
        if berth.name:
            await self._driver.delete(berth.name)
        self._ledger.remove(berth.digest)
        berth.name, berth.state = "", State.STOPPED
        if not berth.leases:
            self._berths.pop(berth.digest, None)

    def _used(self, berth: Berth) -> None:
        now = time.time()
        if now - berth.last_used > _TOUCH_EVERY:
            self._ledger.touch(berth.digest)
        berth.last_used = now

    # ---- keeping

    async def _adopt(self) -> None:
        """Find what a service before left: the sandboxes of chats, and blank ones."""
        records = await asyncio.to_thread(self._ledger.read)
        seen = await self._driver.running()
        for found in seen:
            if found.owner is not None:
                record = records.get(found.owner)
                self._berths[found.owner] = Berth(
                    found.owner,
                    chat=record.chat if record else None,
                    name=found.name,
                    state=found.state,
                    reason=found.reason,
                    last_used=record.last_used if record else time.time(),
                    since=record.since if record else None,
                )
        for digest in records.keys() - self._berths.keys():
            self._ledger.remove(digest)
        gate = asyncio.Semaphore(_CONNECTS_AT_ONCE)

        async def adopt(found: Seen) -> None:
            """One that cannot be taken over is no reason not to serve the others."""
            async with gate:
                try:
                    await self._adopt_one(found, self._berths.get(found.owner or ""))
                except SandboxError as error:
                    log.error("a sandbox from before could not be taken over: %s", error)

        await asyncio.gather(*(adopt(found) for found in seen))
        if seen:
            log.info("adopted %d sandboxes", len(seen))

    async def _adopt_one(self, found: Seen, berth: Berth | None) -> None:
        machine: Machine | None = None
        if found.state is State.RUNNING and (berth is not None or found.current):
            try:
                machine = await connect(self._driver, found.name, patience=_ANSWER_SECONDS)
            except SandboxError as error:
                log.warning("a sandbox from before does not answer: %s", error)
                await self._driver.stop(found.name)
        if berth is not None:
            berth.machine = machine
            berth.state = State.RUNNING if machine else State.STOPPED
            if machine and berth.chat:
                await self._attend(berth.chat, machine)
        elif machine is None or not self.pool.adopt(machine):
            if machine is not None:
                machine.close()
            await self._driver.delete(found.name)

    async def _sweep(self) -> None:
        """Stop what is idle; remove what nobody came back for."""
        pause = max(0.05, min(60.0, self._idle_after / 4, self._remove_after / 4))
        while True:
            await asyncio.sleep(pause)
            for berth in list(self._berths.values()):
                try:
                    await self._sweep_one(berth)
                except Exception:
                    log.exception("sweeping failed", extra={"chat": berth.chat.id if berth.chat else "?"})

    async def _sweep_one(self, berth: Berth) -> None:
        if berth.leases:
            self._ledger.touch(berth.digest)
            return
        idle = time.time() - berth.last_used
        if idle < self._idle_after or not berth.name:
            return
        async with berth.lock:
            if berth.leases:
                return
            if idle >= self._remove_after:
                log.info("removed after its time", extra={"chat": berth.chat.id if berth.chat else "?"})
                await self._remove(berth)
            elif berth.state in (State.RUNNING, State.FAILED):
                log.info("stopped: idle", extra={"chat": berth.chat.id if berth.chat else "?"})
                await self._stop(berth)


def _unforeseen(error: Exception) -> str:
    """What people are told of it: the host's own word (a full disk, say), else where to look."""
    if isinstance(error, OSError) and error.strerror:
        return f"The host refused: {error.strerror}."
    return "The service's log has the reason."
