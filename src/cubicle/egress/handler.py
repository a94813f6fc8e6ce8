"""The egress proxy's callers of one chat: those that know it, those that are redirected, those that look up names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address

from cubicle.core.chat import Chat
from cubicle.egress import socks5
from cubicle.egress.audit import AuditLog
from cubicle.egress.fake_dns import RANGE, BadQuery, FakeDns
from cubicle.egress.http_proxy import HttpProxy
from cubicle.egress.meter import Quota, QuotaSpent
from cubicle.egress.policy import BadTarget, Request, Scheme, Target, terminates
from cubicle.egress.rules_file import RulesFile
from cubicle.egress.streams import Inside, Pipe
from cubicle.egress.tls import Interception
from cubicle.egress.tunnel import relay
from cubicle.egress.upstream import ConnectRefused, Denied, UpstreamDialler
from cubicle.egress.upstream_connections import EgressLimits, UpstreamConnections
from cubicle.log import chat_fields
from cubicle.machine.errors import SandboxError
from cubicle.machine.refusals import Refusal
from cubicle.machine.stream import Stream

log = logging.getLogger(__name__)


_HTTP = 80
_MAX_HANDSHAKES = 4
"""TLS handshakes of one chat that the proxy takes part in at once."""
_NONSENSE = (socks5.BadHandshake, BadQuery, BadTarget)


class ConnectionHandler:
    """Serves the callers of one chat."""

    def __init__(
        self,
        chat: Chat,
        rulebook: RulesFile,
        dialler: UpstreamDialler,
        allowance: Quota,
        limits: EgressLimits,
        interception: Interception | None,
        told: Callable[[Refusal], None],
    ) -> None:
        self._chat = chat
        self._limits = limits
        self._allowance = allowance
        self._interception = interception
        self._upstreams = UpstreamConnections(chat, rulebook, dialler, allowance, limits, interception, told)
        self._names = FakeDns()
        self._handshakes = asyncio.Semaphore(_MAX_HANDSHAKES)

    async def serve(self, stream: Stream) -> None:
        """One caller that knows the proxy, from its first byte to its last."""
        await self._attend(Inside(stream), self._serve)

    async def serve_transparent(self, stream: Stream) -> None:
        """One caller that does not, and was redirected here."""
        if stream.origin is not None:
            await self._attend(Inside(stream), partial(self._transparent, stream.origin))

    async def serve_names(self, stream: Stream) -> None:
        """One caller that looks names up."""
        await self._attend(Inside(stream), self._answer_names)

    async def _attend(self, inside: Inside, work: Callable[[Inside], Awaitable[None]]) -> None:
        self._allowance.connections += 1
        try:
            await self._upstreams.paced()
            await work(inside)
            await inside.linger()
        except (OSError, EOFError, TimeoutError, QuotaSpent, SandboxError, *_NONSENSE):
            pass  # one side went away or must go; what it was is in the audit
        except Exception:
            log.exception("the egress proxy failed for one caller", extra=chat_fields(self._chat))
        finally:
            self._allowance.connections -= 1

    async def _serve(self, inside: Inside) -> None:
        async with asyncio.timeout(self._limits.idle):
            first = await inside.exactly(1)
        inside.put_back(first)
        if first[0] == socks5.VERSION:
            await self._socks(inside)
        else:
            await self._http(inside).serve()

    async def _transparent(self, origin: tuple[str, int], inside: Inside) -> None:
        address, port = origin
        target = Target.parse(address, port)
        if isinstance(target.literal, IPv4Address) and target.literal in RANGE:
            target = Target.parse(self._names.name(target.literal) or "forgotten.invalid", port)
        if port == _HTTP:
            await self._http(inside, target, Scheme.HTTP, "captive").serve()
            return
        with suppress(ConnectRefused):  # there is no way to tell it in words
            await self.tunnel(inside, target, "captive", _nothing)

    async def _answer_names(self, inside: Inside) -> None:
        while True:
            await self._upstreams.paced()
            async with asyncio.timeout(self._limits.handshake):
                query = await inside.exactly(int.from_bytes(await inside.exactly(2), "big"))
            answer = self._names.answer(query)
            await inside.write(len(answer).to_bytes(2, "big") + answer)

    async def _socks(self, inside: Inside) -> None:
        async with asyncio.timeout(self._limits.handshake):
            target = await socks5.handshake(inside)
        try:
            await self.tunnel(inside, target, "socks5", lambda: socks5.answer(inside, socks5.Reply.DONE))
        except Denied:
            await socks5.answer(inside, socks5.Reply.DENIED)
        except ConnectRefused:
            await socks5.answer(inside, socks5.Reply.HOST_UNREACHABLE)

    def _http(
        self, caller: Pipe, inner: Target | None = None, scheme: Scheme = Scheme.HTTP, protocol: str = "http"
    ) -> HttpProxy:
        return HttpProxy(self._upstreams, self.tunnel, caller, inner, scheme, protocol)

    async def tunnel(
        self, inside: Inside, target: Target, protocol: str, connected: Callable[[], Awaitable[None]]
    ) -> None:
        """Carry bytes to the target; Refused before `connected` was called, if at all."""
        policy = await self._upstreams.policy()
        if self._interception is not None and terminates(policy, target):
            self._upstreams.check_limits(policy, AuditLog(self._chat, Request(target), protocol))
            await connected()
            async with self._handshakes, asyncio.timeout(self._limits.handshake):
                secured = await self._interception.accept(inside, target)
            await self._http(secured, target, Scheme.HTTPS, "https").serve()
            await secured.write_eof()
            return
        async with self._upstreams.connect(policy, Request(target), protocol) as upstream:
            await connected()
            await relay(inside, upstream.pipe, upstream.hurry)


async def _nothing() -> None:
    """A caller that was redirected believes that it is connected already."""
