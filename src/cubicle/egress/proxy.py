"""The egress proxy of the service: one object, which attends every machine of the fleet."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from cubicle.core.chat import Chat
from cubicle.egress.environment import (
    HTTP_PORT,
    NAMES_PORT,
    RESOLVER,
    RESOLVER_FILE,
    SOCKS_PORT,
    TRANSPARENT_PORT,
    TRUST_FILE,
    proxy_environment,
    trust_environment,
)
from cubicle.egress.handler import ConnectionHandler
from cubicle.egress.lookups import Lookups
from cubicle.egress.policy import Policy
from cubicle.egress.quota import FOLDER, Quotas
from cubicle.egress.rules_file import Additions, RulesFile, RulesSource
from cubicle.egress.tls import Interception
from cubicle.egress.tls_authority import Authority
from cubicle.egress.upstream import Resolve, UpstreamDialler
from cubicle.egress.upstream_connections import EgressLimits
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream

log = logging.getLogger(__name__)

_SYSTEM_TRUST = "/etc/ssl/certs/ca-certificates.crt"
_MAX_TRUST = 4 * 1024 * 1024


class EgressProxy:
    """Give `attached` to the fleet, inside `async with` of this object."""

    def __init__(
        self,
        policy: Policy,
        *,
        folder: Path,
        rules_file: Path | None = None,
        limits: EgressLimits | None = None,
        resolve: Resolve | None = None,
        trust: ssl.SSLContext | None = None,
        transparent: Callable[[], bool] = lambda: False,
        additions: Additions | None = None,
        rules: RulesSource | None = None,
    ) -> None:
        """`rules` hold until the rules file is found to have changed."""
        self.rulebook = RulesFile(rules_file, policy, additions)
        self._rules = rules
        self._limits = limits or EgressLimits()
        self._lookups = Lookups()
        self._resolve = resolve
        self._authority = Authority(folder)
        self._trust = trust
        self._transparent = transparent
        self._interception: Interception | None = None
        self.allowances = Quotas(folder / FOLDER)

    async def __aenter__(self) -> Self:
        """Read the rules; BadRules if they cannot be used."""
        await self.rulebook.open(self._rules)
        await self.allowances.open()
        if self.rulebook.may_inject:
            await asyncio.to_thread(self._authority.open)
            trust = self._trust if self._trust is not None else await asyncio.to_thread(_default_trust)
            self._interception = Interception(self._authority, trust)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._lookups.close()
        await self.allowances.close()

    async def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        await self.allowances.forget(chat)

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine, *, transparent: bool | None = None) -> AsyncIterator[None]:
        """Listen in this sandbox for as long as it is up, and tell its commands where."""
        allowance = await self.allowances.of(chat)
        dialler = UpstreamDialler(self._resolve or self._lookups.of(chat), self._limits.connect)
        gate = ConnectionHandler(
            *(chat, self.rulebook, dialler, allowance, self._limits, self._interception),
            machine.refusals.add,
        )
        async with AsyncExitStack() as stack:
            port = await _listen(stack, machine, HTTP_PORT, gate.serve)
            await _listen(stack, machine, SOCKS_PORT, gate.serve)
            machine.environment |= proxy_environment(port)
            if self._interception is not None and await self._plant(machine):
                machine.environment |= trust_environment()
            if self._transparent() if transparent is None else transparent:
                await self._capture(stack, machine, gate)
            yield

    async def _capture(self, stack: AsyncExitStack, machine: Machine, gate: ConnectionHandler) -> None:
        """Serve programs that ignore the variables: those whom the driver redirects, and the names they look up."""
        try:
            await stack.enter_async_context(machine.listen(TRANSPARENT_PORT, gate.serve_transparent, origin=True))
            await stack.enter_async_context(machine.listen(NAMES_PORT, gate.serve_names, datagrams=True))
            await machine.write(RESOLVER_FILE, RESOLVER.encode(), as_root=True)
        except* MachineError as errors:
            log.warning("programs that ignore proxies find no network in a sandbox: %s", errors.exceptions)

    async def _plant(self, machine: Machine) -> bool:
        """Put a bundle into the sandbox: what its image trusts, and the authority of the proxy."""
        try:
            bundle = await machine.read_bytes(_SYSTEM_TRUST, limit=_MAX_TRUST)
        except MachineError:
            bundle = b""
        try:
            await machine.write(TRUST_FILE, bundle.rstrip() + b"\n" + self._authority.pem, as_root=True)
        except MachineError as error:
            log.error("the proxy's certificate could not be put into a sandbox: %s", error)
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
        log.warning("port %d of a sandbox is taken; its proxy listens elsewhere", port)
    return await stack.enter_async_context(machine.listen(0, handler))
