"""A caller's sandbox, ready for work: up, with the caller's skills and README in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cubicle.core.caller import Caller
from cubicle.machine.machine import Machine
from cubicle.prompt.provision import Provisioner
from cubicle.prompt.user_tokens import UserTokens
from cubicle.sandbox.fleet import Fleet


class Workspace:
    """Where tools find the machine of the caller that they work for."""

    def __init__(self, fleet: Fleet, provisioner: Provisioner | None = None, tokens: UserTokens | None = None) -> None:
        self._fleet = fleet
        self._tokens = tokens
        self._provisioner = provisioner

    @asynccontextmanager
    async def lease(self, caller: Caller) -> AsyncIterator[Machine]:
        """The caller's machine; the sandbox stays up for as long as the block lasts."""
        if self._tokens is not None:
            self._tokens.note(caller)
        async with self._fleet.lease(caller.chat) as machine:
            if self._provisioner is not None:
                await self._provisioner.prepare(machine, caller)
            yield machine
