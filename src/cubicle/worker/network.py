"""The service's side of the network worker: it keeps one running, and attaches it to every sandbox that is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Self

from cubicle.agents.budget import BudgetStore
from cubicle.agents.live_tokens import LiveTokens
from cubicle.core.chat import Chat
from cubicle.egress.environment import proxy_environment
from cubicle.egress.quota import FOLDER, remove_record
from cubicle.egress.rules_file import Additions, RulesFile
from cubicle.egress.tls_authority import Authority
from cubicle.log import chat_fields
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.tasks import start_task
from cubicle.worker.answers import Answers, Attachment, environment_of
from cubicle.worker.channel import ChannelLost, ControlChannel
from cubicle.worker.egress_reports import EgressReports
from cubicle.worker.setup import Setup
from cubicle.worker.spawner import NoWorker, Spawner, WorkerProcess, first_of

log = logging.getLogger(__name__)

_PAUSES = (0.0, 0.0, 0.0, 0.2, 1.0, 5.0, 15.0, 30.0)
"""Before the next start of a worker, by how many ended in a row soon after theirs."""
_SOON = 30.0
_UP_SECONDS = 30.0
_PING_EVERY = 2.0
_PING_SECONDS = 5.0
_MAX_SILENT_PINGS = 2
_END_SECONDS = 4.0
_ATTACH_SECONDS = 30.0
_FIRST_SECONDS = 15.0
"""How long a sandbox's first command waits for its network; shorter while workers end one after the other."""
_SETTLED_SECONDS = 10.0
_ATTACH_PAUSES = (0.05, 0.2, 1.0, 5.0)
_FORGET_SECONDS = 5.0


class NetworkWorker:
    """Give `attached` to the fleet, inside `async with` of this object."""

    def __init__(
        self,
        setup: Setup,
        *,
        budgets: BudgetStore,
        tokens: LiveTokens,
        additions: Additions | None = None,
        transparent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._setup = replace(setup, has_additions=additions is not None)
        self.budgets = budgets
        self._transparent = transparent
        self._rulebook = RulesFile(setup.rules_file, setup.policy)
        self._answers = Answers(budgets, tokens, additions, self._rulebook)
        self._spawner = Spawner()
        self.egress = EgressReports()
        self._answers.decided = lambda *decision: self.egress.decide(*decision)
        self._process: WorkerProcess | None = None
        self._channel: ControlChannel | None = None
        self._is_up = asyncio.Event()
        self._ended_soon = 0
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the worker that serves now."""
        return self._process.pid if self._process is not None and self._is_up.is_set() else None

    async def __aenter__(self) -> Self:
        """Check what a worker will need, and have one started. Raises BadRules, OSError."""
        await self._rulebook.open()
        await asyncio.to_thread(self.budgets.open)
        if self._setup.rules_file is not None or self._setup.has_additions:
            await asyncio.to_thread(Authority(self._setup.folder).open)
        self._keeper = start_task(self._keep_running(), name="network worker")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._spawner.close()

    async def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        await self.budgets.forget(chat)
        with suppress(ChannelLost):
            if self._channel is not None:
                await self._channel.ask("forget", limit=_FORGET_SECONDS, chat=chat.id, tenant=chat.tenant)
                return
        await asyncio.to_thread(remove_record, self._setup.folder / FOLDER, chat.digest)

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """Have the worker serve this sandbox for as long as it is up, whichever worker that is."""
        machine.environment |= proxy_environment()  # also for what starts before the worker does
        attachment = Attachment(chat, machine)
        task = start_task(self._keep_attached(attachment), name=f"network of {machine.name}")
        try:
            limit = _FIRST_SECONDS if self._ended_soon < 2 else 1.0
            if not await first_of(attachment.attached, attachment.over, limit=limit):
                log.error("a sandbox is without network for now", extra=chat_fields(chat))
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_attached(self, attachment: Attachment) -> None:
        failures = 0
        while attachment.machine.alive:
            await self._is_up.wait()
            channel = self._channel
            if channel is None:
                continue
            try:
                async with self._answers.attached(attachment) as number:
                    try:
                        await self._attach(channel, number, attachment)
                        if not await first_of(attachment.lost, channel.closed, limit=_SETTLED_SECONDS):
                            failures = 0
                            await first_of(attachment.lost, channel.closed, limit=None)
                        elif attachment.lost.is_set():
                            failures += 1
                    finally:
                        channel.notify("detach", id=number)
            except (SandboxError, ChannelLost) as error:
                if not attachment.machine.alive:
                    break
                failures += 1
                if not channel.closed.is_set():
                    log.warning("the network of a sandbox is not there: %s", error, extra=chat_fields(attachment.chat))
            except Exception:
                failures += 1
                log.exception("the network of a sandbox is not there", extra=chat_fields(attachment.chat))
            if not channel.closed.is_set():
                await asyncio.sleep(_ATTACH_PAUSES[min(failures, len(_ATTACH_PAUSES) - 1)])
        attachment.over.set()

    async def _attach(self, channel: ControlChannel, number: int, attachment: Attachment) -> None:
        machine, chat = attachment.machine, attachment.chat
        sock = await machine.reach()
        named = {"id": number, "name": machine.name, "chat": chat.id, "tenant": chat.tenant}
        answer = await channel.ask(
            "attach", limit=_ATTACH_SECONDS, pass_sockets=[sock], transparent=bool(self._transparent()), **named
        )
        machine.environment |= environment_of(answer)
        attachment.attached.set()

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                how = await self._run_one()
            except NoWorker as error:
                how = str(error)
            except Exception as error:
                log.exception("the network worker could not be kept")
                how = str(error)
            self._ended_soon = 1 if loop.time() - began > _SOON else self._ended_soon + 1
            pause = _PAUSES[min(self._ended_soon, len(_PAUSES) - 1)]
            if pause:
                log.error(
                    "the network worker ended %d times in a row (%s); sandboxes have no network for %g s",
                    *(self._ended_soon, how, pause),
                )
            else:
                log.error("the network worker ended (%s) and is started again", how)
            await asyncio.sleep(pause)

    async def _run_one(self) -> str:
        """Start a worker and see it through to its end; how it ended."""
        await self._rulebook.refresh()
        worker = await self._spawner.fork(replace(self._setup, rules=self._rulebook.source))
        up = asyncio.Event()
        channel = ControlChannel(worker.control, self._answers.handlers(up))
        try:
            if await first_of(up, channel.closed, limit=_UP_SECONDS):
                self._process, self._channel = worker, channel
                self._is_up.set()
                log.info("the network worker is up", extra={"pid": worker.pid})
                await self._watch(worker, channel)
            elif not channel.closed.is_set():
                worker.kill()
        finally:
            self._is_up.clear()
            self._process = self._channel = None
            channel.close()
            how = await asyncio.shield(worker.wait(_END_SECONDS))
            worker.close()
        return how

    async def _watch(self, worker: WorkerProcess, channel: ControlChannel) -> None:
        """Returns when the worker is gone. One that answers nothing for long is killed."""
        silent = 0
        while not channel.closed.is_set():
            if await first_of(channel.closed, channel.closed, limit=_PING_EVERY):
                return
            try:
                answer = await channel.ask(
                    "ping",
                    limit=_PING_SECONDS,
                    spent_tenants=list(self.egress.spent_tenants),
                    spent_chats=list(self.egress.spent_chats),
                )
                silent = 0
                self.egress.take(answer)
            except ChannelLost:
                silent += 1
            if silent >= _MAX_SILENT_PINGS and not channel.closed.is_set():
                log.error("the network worker does not answer and is killed", extra={"pid": worker.pid})
                worker.kill()
                return
            with suppress(NoWorker):
                await self._spawner.start()  # so that the next worker is ready at once
