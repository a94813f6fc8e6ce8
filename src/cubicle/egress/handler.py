"""The door as one chat meets it: its callers, its policy, its allowance."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

from cubicle.core.chat import Chat
from cubicle.egress import messages, socks5
from cubicle.egress.audit import Event, Trail
from cubicle.egress.fake_dns import RANGE, BadQuery, Names
from cubicle.egress.http_proxy import HttpSide
from cubicle.egress.meter import Allowance, Meter, Pace, Spent
from cubicle.egress.policy import BadTarget, Policy, Request, Scheme, Target, Verdict, terminates
from cubicle.egress.rules_file import Rulebook
from cubicle.egress.streams import Inside, Outside
from cubicle.egress.tls import Interception
from cubicle.egress.tunnel import Idle, relay
from cubicle.egress.upstream import Denied, Dialler, Refused
from cubicle.log import chat_fields
from cubicle.machine.errors import SandboxError
from cubicle.machine.refusals import Refusal
from cubicle.machine.stream import Stream

log = logging.getLogger(__name__)


_HTTP = 80
_MANY_CONNECTIONS = 32
_REQUESTS_PER_SECOND = 2000.0
"""Connections, requests and name queries of one chat, each counted."""
_MAX_HANDSHAKES = 4
"""TLS handshakes of one chat that the door takes part in at once."""
_NONSENSE = (socks5.BadHandshake, BadQuery, BadTarget)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that the door waits."""

    connect: float = 15.0
    idle: float = 600.0
    silent: float = 60.0
    """As idle, once the caller has closed its side."""
    handshake: float = 20.0


@dataclass(frozen=True, slots=True)
class Way:
    """A connection to the outside, and the verdict that opened it."""

    pipe: Outside
    verdict: Verdict
    hurry: Callable[[], None]
    """Call it when the caller falls silent: one that was killed looks like one that waits for the answer."""


class Gate:
    """Serves the callers of one chat."""

    def __init__(
        self,
        chat: Chat,
        rulebook: Rulebook,
        dialler: Dialler,
        allowance: Allowance,
        limits: Limits,
        interception: Interception | None,
        told: Callable[[Refusal], None],
    ) -> None:
        self.chat = chat
        self._told = told
        self.limits = limits
        self.interception = interception
        self._rulebook = rulebook
        self._dialler = dialler
        self._allowance = allowance
        self._names = Names()
        self._pace = Pace(_REQUESTS_PER_SECOND)
        self._handshakes = asyncio.Semaphore(_MAX_HANDSHAKES)

    async def paced(self) -> None:
        """Wait while the chat makes more requests than it may in a second."""
        await self._pace.take()

    async def policy(self) -> Policy:
        return await self._rulebook.policy(self.chat)

    async def serve(self, stream: Stream) -> None:
        """One caller that knows the door, from its first byte to its last."""
        await self._attend(Inside(stream), self._serve)

    async def serve_captive(self, stream: Stream) -> None:
        """One caller that does not, and was redirected here."""
        if stream.origin is not None:
            await self._attend(Inside(stream), partial(self._captive, stream.origin))

    async def serve_names(self, stream: Stream) -> None:
        """One caller that looks names up."""
        await self._attend(Inside(stream), self._answer_names)

    async def _attend(self, inside: Inside, work: Callable[[Inside], Awaitable[None]]) -> None:
        self._allowance.connections += 1
        try:
            await self.paced()
            await work(inside)
            await inside.linger()
        except (OSError, EOFError, TimeoutError, Spent, SandboxError, *_NONSENSE):
            pass  # one side went away or must go; what it was is in the audit
        except Exception:
            log.exception("the egress door failed for one caller", extra=chat_fields(self.chat))
        finally:
            self._allowance.connections -= 1

    async def _serve(self, inside: Inside) -> None:
        async with asyncio.timeout(self.limits.idle):
            first = await inside.exactly(1)
        inside.put_back(first)
        if first[0] == socks5.VERSION:
            await self._socks(inside)
        else:
            await HttpSide(self, inside).serve()

    async def _captive(self, origin: tuple[str, int], inside: Inside) -> None:
        address, port = origin
        target = Target.parse(address, port)
        if isinstance(target.literal, IPv4Address) and target.literal in RANGE:
            target = Target.parse(self._names.name(target.literal) or "forgotten.invalid", port)
        if port == _HTTP:
            await HttpSide(self, inside, target, Scheme.HTTP, "captive").serve()
            return
        with suppress(Refused):  # there is no way to tell it in words
            await self.tunnel(inside, target, "captive", _nothing)

    async def _answer_names(self, inside: Inside) -> None:
        while True:
            await self.paced()
            async with asyncio.timeout(self.limits.handshake):
                query = await inside.exactly(int.from_bytes(await inside.exactly(2), "big"))
            answer = self._names.answer(query)
            await inside.write(len(answer).to_bytes(2, "big") + answer)

    async def _socks(self, inside: Inside) -> None:
        async with asyncio.timeout(self.limits.handshake):
            target = await socks5.handshake(inside)
        try:
            await self.tunnel(inside, target, "socks5", lambda: socks5.answer(inside, socks5.Reply.DONE))
        except Denied:
            await socks5.answer(inside, socks5.Reply.DENIED)
        except Refused:
            await socks5.answer(inside, socks5.Reply.HOST_UNREACHABLE)

    async def tunnel(self, inside: Inside, target: Target, door: str, connected: Callable[[], Awaitable[None]]) -> None:
        """Carry bytes to the target; Refused before `connected` was called, if at all."""
        policy = await self.policy()
        if self.interception is not None and terminates(policy, target):
            self.check_limits(policy, Trail(self.chat, Request(target), door))
            await connected()
            async with self._handshakes, asyncio.timeout(self.limits.handshake):
                secured = await self.interception.accept(inside, target)
            await HttpSide(self, secured, target, Scheme.HTTPS, "https").serve()
            await secured.write_eof()
            return
        async with self.way(policy, Request(target), door) as way:
            await connected()
            await relay(inside, way.pipe, way.hurry)

    @asynccontextmanager
    async def way(self, policy: Policy, request: Request, door: str) -> AsyncIterator[Way]:
        """Judge, dial, and write down how it went; the block is cut when nothing moves for too long."""
        trail = Trail(self.chat, request, door)
        self.check_limits(policy, trail)
        try:
            choices = await self._dialler.choose(policy, request)
            small = self._allowance.connections > _MANY_CONNECTIONS
            sock, address = await self._dialler.dial(request.target, choices, small=small)
        except Denied as no:
            self._deny(policy, trail, no)
            raise
        except Refused as no:
            trail.record(Event.FAILED, reason=str(no))
            self._told(Refusal(str(request.target), str(no), str(no)))
            raise
        verdict = dict(choices)[address]
        trail.record(Event.ALLOWED, rule=verdict.rule, address=address, headers_set=len(verdict.inject))
        began, reason = time.monotonic(), ""
        idle = Idle(self.limits.idle)
        meter = Meter(self._allowance, policy.most_bytes, idle.touch)
        try:
            with sock:
                async with idle.watch():
                    yield Way(Outside(sock, meter), verdict, partial(idle.hurry, self.limits.silent))
        except TimeoutError:
            reason = "nothing moved for too long"
            raise
        except Spent:
            reason = "the chat used up its bytes for the day"
            raise
        except Refused as no:
            reason = str(no)
            raise
        except (OSError, SandboxError):
            reason = "the connection broke off"
            raise
        finally:
            seconds = round(time.monotonic() - began, 3)
            used = {"up": meter.up, "down": meter.down, "seconds": seconds}
            trail.record(Event.CLOSED, rule=verdict.rule, reason=reason, address=address, **used)

    def check_limits(self, policy: Policy, trail: Trail) -> None:
        """Denied when the chat has more than its share already."""
        reason = ""
        if self._allowance.connections > policy.most_connections:
            reason = f"more than {policy.most_connections} connections at once"
        elif self._allowance.spent(policy.most_bytes):
            reason = f"the chat used up its {policy.most_bytes >> 20} MiB for the day"
        if reason:
            no = Denied(Verdict(False, "limits", reason))
            self._deny(policy, trail, no)
            raise no

    def _deny(self, policy: Policy, trail: Trail, no: Denied) -> None:
        trail.record(Event.DENIED, rule=no.verdict.rule, reason=no.verdict.reason, address=no.address)
        request, verdict = trail.request, no.verdict
        note = messages.note(policy, request, verdict.rule, verdict.reason)
        self._told(Refusal(str(request.target), note, messages.shown(policy, request, verdict.reason)))


async def _nothing() -> None:
    """A caller that was redirected believes that it is connected already."""
