"""The worker itself: an egress proxy and a gateway in each sandbox that the service attaches it to."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import uvloop

from cubicle import heap
from cubicle.agents.gateway import Gateway
from cubicle.core.chat import Chat
from cubicle.egress.proxy import EgressProxy
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.refusals import Refusal, Refusals
from cubicle.tasks import start_task
from cubicle.worker.channel import ChannelLost, ControlChannel, Fields, Handler
from cubicle.worker.remote import MAX_REFUSALS, REFUSALS_PER_SECOND, ForwardedLog, Service, Volume
from cubicle.worker.setup import Setup
from cubicle.worker.shares import CpuShares, MeteredLine, current, task_factory

log = logging.getLogger(__name__)

_HELLO_SECONDS = 20.0
_RESUME_SECONDS = 10.0
_FAREWELL_SECONDS = 2.0
_OPEN_FILES = 65_536
_MAX_REPORTS = 150
"""Chats in one answer: it must fit into a message of the control channel."""


def serve(control: socket.socket, setup_file: int) -> None:
    """Work until the service hangs up."""
    with open(setup_file, "rb") as file:
        setup = pickle.load(file)  # noqa: S301 — the service wrote it, into memory that nobody else has
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, min(most, _OPEN_FILES)), most))
    gc.set_threshold(20_000, 50, 100)
    heap.keep_small()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_task_factory(task_factory)
        runner.run(_serve(control, setup))


async def _serve(control: socket.socket, setup: Setup) -> None:
    worker = Worker(control, setup)
    handler = ForwardedLog(worker.channel)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(setup.log_level)
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    async with heap.kept_small(), worker.running():
        await worker.channel.closed.wait()
        asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, os._exit, 1)


class Worker:
    """Serves the sandboxes that the service attaches."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        handlers: dict[str, Handler] = {
            "attach": self._on_attach,
            "detach": self._on_detach,
            "forget": self._on_forget,
            "ping": self._on_ping,
        }
        self.channel = ControlChannel(control, handlers)
        service = Service(self.channel)
        self._egress = EgressProxy(
            setup.policy,
            folder=setup.folder,
            rules_file=setup.rules_file,
            rules=setup.rules,
            limits=setup.limits,
            trust=None if setup.trust_file is None else ssl.create_default_context(cafile=str(setup.trust_file)),
            additions=service.additions if setup.has_additions else None,
        )
        self._egress.rulebook.on_read = self._on_rules_read
        self._gateway = Gateway(setup.apis, setup.servers, service, service)
        self._shares = CpuShares()
        self._attached: dict[int, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._egress, self._gateway:
            self.channel.notify("up")
            try:
                yield
            finally:
                tasks = list(self._attached.values())
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _on_rules_read(self) -> None:
        self.channel.notify("rules_read")

    def _on_ping(self, fields: Fields, sockets: list[socket.socket]) -> Any:
        return self._report(
            set(map(str, fields.get("spent_tenants", ()))), set(map(str, fields.get("spent_chats", ())))
        )

    async def _report(self, tenants: set[str], digests: set[str]) -> Fields:
        """What was done since the last ping; what the service says is spent holds from here on."""
        self._egress.allowances.block(tenants, digests)
        return {"egress": [report.packed() for report in self._egress.allowances.reports(_MAX_REPORTS)]}

    def _on_detach(self, fields: Fields, sockets: list[socket.socket]) -> None:
        if (task := self._attached.get(int(fields["id"]))) is not None:
            task.cancel()

    def _on_forget(self, fields: Fields, sockets: list[socket.socket]) -> Any:
        return self._forget(Chat(fields["chat"], fields["tenant"]))

    def _on_attach(self, fields: Fields, sockets: list[socket.socket]) -> Any:
        (sock,) = sockets
        number, chat = int(fields["id"]), Chat(fields["chat"], fields["tenant"])
        ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        attach = self._attach(number, str(fields["name"]), chat, sock, fields["transparent"] is True, ready)
        task = start_task(attach, name=f"attach {number}")
        self._attached[number] = task
        task.add_done_callback(lambda done: self._on_end(number, ready, done))
        return _environment(ready)

    def _on_end(self, number: int, ready: asyncio.Future[dict[str, str]], task: asyncio.Task[None]) -> None:
        self._attached.pop(number, None)
        error = None if task.cancelled() else task.exception()
        if not ready.done():
            ready.set_exception(ChannelLost(str(error) if error is not None else "It was detached."))
        self.channel.notify("lost", id=number)

    async def _attach(
        self,
        number: int,
        name: str,
        chat: Chat,
        sock: socket.socket,
        transparent: bool,
        ready: asyncio.Future[dict[str, str]],
    ) -> None:
        share = self._shares.of(chat)
        current.set(share)
        share.lines += 1
        sock.setblocking(False)
        machine: Machine | None = None
        try:
            line = await MeteredLine.over(sock)
            line.liveness.resume = lambda: self._resume(number)
            machine = Machine(name, line)
            volume = Volume(MAX_REFUSALS, REFUSALS_PER_SECOND)
            machine.refusals = Told(lambda refusal: self._tell(number, volume, refusal))
            async with AsyncExitStack() as stack:
                try:
                    await machine.hello(_HELLO_SECONDS)
                    await stack.enter_async_context(self._egress.attached(chat, machine, transparent=transparent))
                    await stack.enter_async_context(self._gateway.attached(chat, machine))
                    ready.set_result(dict(machine.environment))
                    await machine.gone()
                except SandboxError as error:
                    if not ready.done():
                        ready.set_exception(ChannelLost(str(error)))
        finally:
            if machine is not None and machine.offence:
                self.channel.notify("offence", id=number, reason=machine.offence[:300])
            if machine is not None:
                machine.close()
            else:
                sock.close()
            share.lines -= 1
            if not share.lines:
                self._shares.forget(share)

    async def _resume(self, number: int) -> bool:
        with suppress(ChannelLost):
            return (await self.channel.ask("resume", limit=_RESUME_SECONDS, id=number)).get("resumed") is True
        return False

    def _tell(self, number: int, volume: Volume, refusal: Refusal) -> None:
        if volume.take() and not self.channel.congested:
            self.channel.notify(
                "refusal", id=number, target=refusal.target[:300], note=refusal.note[:2000], shown=refusal.shown[:2000]
            )

    async def _forget(self, chat: Chat) -> Fields:
        await self._egress.forget(chat)
        return {}


class Told(Refusals):
    """Refusals that the service keeps."""

    def __init__(self, tell: Callable[[Refusal], None]) -> None:
        super().__init__()
        self._tell = tell

    def add(self, refusal: Refusal) -> None:
        self._tell(refusal)


async def _environment(ready: asyncio.Future[dict[str, str]]) -> Fields:
    return {"environment": await ready}
