"""The egress door of the service: one object, which attends every machine of the fleet."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from cubicle.rules.chats import Chat
from cubicle.rules.egress import Policy
from cubicle.sandbox.egress.authority import Authority
from cubicle.sandbox.egress.dialler import Dialler, Resolve, Resolver
from cubicle.sandbox.egress.environment import (
    CAPTIVE_PORT,
    HTTP_PORT,
    NAMES_PORT,
    RESOLVER,
    RESOLVER_FILE,
    SOCKS_PORT,
    TRUST_FILE,
    proxy_environment,
    trust_environment,
)
from cubicle.sandbox.egress.gate import Gate, Limits
from cubicle.sandbox.egress.meter import Allowance
from cubicle.sandbox.egress.rulebook import Additions, Rulebook
from cubicle.sandbox.egress.secured import Interception
from cubicle.sandbox.machine import Machine, MachineError
from cubicle.sandbox.stream import Stream

log = logging.getLogger(__name__)

_SYSTEM_TRUST = "/etc/ssl/certs/ca-certificates.crt"
_LARGEST_TRUST = 4 * 1024 * 1024
_MOST_ALLOWANCES = 10_000


class EgressDoor:
    """Give `attend` to the fleet, inside `async with` of this object."""

    def __init__(
        self,
        policy: Policy,
        *,
        folder: Path,
        rules_file: Path | None = None,
        limits: Limits | None = None,
        resolve: Resolve | None = None,
        trust: ssl.SSLContext | None = None,
        captive: Callable[[], bool] = lambda: False,
        additions: Additions | None = None,
    ) -> None:
        self._rulebook = Rulebook(rules_file, policy, additions)
        self._limits = limits or Limits()
        self._resolver = Resolver()
        self._dialler = Dialler(resolve or self._resolver, self._limits.connect)
        self._authority = Authority(folder)
        self._trust = trust
        self._captive = captive
        self._interception: Interception | None = None
        self._allowances: dict[str, Allowance] = {}

    async def __aenter__(self) -> Self:
        """Read the rules; BadRules if they cannot be used."""
        await self._rulebook.open()
        if self._rulebook.may_inject:
            await asyncio.to_thread(self._authority.open)
            trust = self._trust if self._trust is not None else await asyncio.to_thread(_default_trust)
            self._interception = Interception(self._authority, trust)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._resolver.close()

    @asynccontextmanager
    async def attend(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """Listen in this sandbox for as long as it is up, and tell its commands where."""
        gate = Gate(
            *(chat, self._rulebook, self._dialler, self._allowance(chat), self._limits, self._interception),
            machine.refusals.add,
        )
        async with AsyncExitStack() as stack:
            port = await _listen(stack, machine, HTTP_PORT, gate.serve)
            await _listen(stack, machine, SOCKS_PORT, gate.serve)
            machine.environment |= proxy_environment(port)
            if self._interception is not None and await self._plant(machine):
                machine.environment |= trust_environment()
            if self._captive():
                await self._capture(stack, machine, gate)
            yield

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        self._allowances.pop(chat.digest, None)

    async def _capture(self, stack: AsyncExitStack, machine: Machine, gate: Gate) -> None:
        """Serve programs that ignore the variables: those whom the driver redirects, and the names they look up."""
        try:
            await stack.enter_async_context(machine.listen(CAPTIVE_PORT, gate.serve_captive, origin=True))
            await stack.enter_async_context(machine.listen(NAMES_PORT, gate.serve_names, datagrams=True))
            await machine.write(RESOLVER_FILE, RESOLVER.encode(), as_root=True)
        except* MachineError as errors:
            log.warning("programs that ignore proxies find no network in a sandbox: %s", errors.exceptions)

    def _allowance(self, chat: Chat) -> Allowance:
        if len(self._allowances) > _MOST_ALLOWANCES:
            self._allowances = {key: kept for key, kept in self._allowances.items() if not kept.forgettable}
        return self._allowances.setdefault(chat.digest, Allowance())

    async def _plant(self, machine: Machine) -> bool:
        """Put a bundle into the sandbox: what its image trusts, and the authority of the door."""
        try:
            bundle = await machine.read_bytes(_SYSTEM_TRUST, limit=_LARGEST_TRUST)
        except MachineError:
            bundle = b""
        try:
            await machine.write(TRUST_FILE, bundle.rstrip() + b"\n" + self._authority.pem, as_root=True)
        except MachineError as error:
            log.error("the door's certificate could not be put into a sandbox: %s", error)
            return False
        return True


def _default_trust() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _listen(
    stack: AsyncExitStack, machine: Machine, port: int, handler: Callable[[Stream], Awaitable[None]]
) -> int:
    """Listen on the usual port, or on any if something in the sandbox took it."""
    try:
        return await stack.enter_async_context(machine.listen(port, handler))
    except* MachineError:
        log.warning("port %d of a sandbox is taken; its door listens elsewhere", port)
    return await stack.enter_async_context(machine.listen(0, handler))
