"""Services that every sandbox in use has beside it on the host: its egress proxy, the gateway of its coding agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from cubicle.core.chat import Chat
from cubicle.log import chat_fields, detached
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine

log = logging.getLogger(__name__)

SandboxService = Callable[[Chat, Machine], AbstractAsyncContextManager[None]]
"""Entered before the machine's first lease, left when the machine is gone."""

Admission = Callable[[Chat], AbstractAsyncContextManager[None]]
"""Entered around each start of a chat's sandbox: it may wait in a queue. Raises StartRefused."""


class SandboxServices:
    def __init__(self, sandbox_services: Sequence[SandboxService]) -> None:
        self._sandbox_services = sandbox_services

    async def start(self, group: asyncio.TaskGroup, chat: Chat, machine: Machine) -> None:
        """Start them in a task of their own, and wait until they are ready; only then others may use the machine."""
        if self._sandbox_services:
            ready = asyncio.Event()
            group.create_task(self._run(chat, machine, ready), name=f"attend {machine.name}")
            try:
                await ready.wait()
            except BaseException:
                machine.close()  # nobody else knows it yet, and the task lasts as long as it does
                raise

    async def _run(self, chat: Chat, machine: Machine, ready: asyncio.Event) -> None:
        try:
            with detached():
                await self._serve(chat, machine, ready)
        except* SandboxError as errors:
            if machine.alive:
                log.error("what attends the sandbox failed: %s", errors.exceptions, extra=chat_fields(chat))
        except* Exception:
            log.exception("what attends the sandbox failed", extra=chat_fields(chat))
        finally:
            ready.set()

    async def _serve(self, chat: Chat, machine: Machine, ready: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            for sandbox_service in self._sandbox_services:
                await stack.enter_async_context(sandbox_service(chat, machine))
            ready.set()
            await machine.gone()
