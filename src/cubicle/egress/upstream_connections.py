"""The egress proxy's connections to the outside for one chat: judged by its policy, counted, written down."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from cubicle.core.chat import Chat
from cubicle.egress import messages
from cubicle.egress.audit import AuditEvent, AuditLog
from cubicle.egress.meter import Meter, Pace, Quota, QuotaSpent
from cubicle.egress.policy import Policy, PolicyVerdict, Request
from cubicle.egress.rules_file import RulesFile
from cubicle.egress.streams import Outside
from cubicle.egress.tls import Interception
from cubicle.egress.tunnel import Idle
from cubicle.egress.upstream import ConnectRefused, Denied, UpstreamDialler
from cubicle.machine.errors import SandboxError
from cubicle.machine.refusals import Refusal

_MANY_CONNECTIONS = 32
_REQUESTS_PER_SECOND = 2000.0
"""Connections, requests and name queries of one chat, each counted."""


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """Seconds that the egress proxy waits."""

    connect: float = 15.0
    idle: float = 600.0
    silent: float = 60.0
    """As idle, once the caller has closed its side."""
    handshake: float = 20.0


@dataclass(frozen=True, slots=True)
class UpstreamConnection:
    """A connection to the outside, and the verdict that opened it."""

    pipe: Outside
    verdict: PolicyVerdict
    hurry: Callable[[], None]
    """Call it when the caller falls silent: one that was killed looks like one that waits for the answer."""


class UpstreamConnections:
    """Opens the connections of one chat."""

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
        self.chat = chat
        self.limits = limits
        self.interception = interception
        self._told = told
        self._rulebook = rulebook
        self._dialler = dialler
        self._allowance = allowance
        self._pace = Pace(_REQUESTS_PER_SECOND)

    async def paced(self) -> None:
        """Wait while the chat makes more requests than it may in a second."""
        await self._pace.take()

    async def policy(self) -> Policy:
        return await self._rulebook.policy(self.chat)

    @asynccontextmanager
    async def connect(self, policy: Policy, request: Request, protocol: str) -> AsyncIterator[UpstreamConnection]:
        """Judge, dial, and write down how it went; the block is cut when nothing moves for too long."""
        trail = AuditLog(self.chat, request, protocol)
        self.check_limits(policy, trail)
        try:
            choices = await self._dialler.choose(policy, request)
            small = self._allowance.connections > _MANY_CONNECTIONS
            sock, address = await self._dialler.dial(request.target, choices, small=small)
        except Denied as no:
            self._deny(policy, trail, no)
            raise
        except ConnectRefused as no:
            trail.record(AuditEvent.FAILED, reason=str(no))
            self._allowance.tally.failed += 1
            self._told(Refusal(str(request.target), str(no), str(no)))
            raise
        verdict = dict(choices)[address]
        self._allowance.tally.allowed += 1
        trail.record(AuditEvent.ALLOWED, rule=verdict.rule, address=address, headers_set=len(verdict.inject))
        began, reason = time.monotonic(), ""
        idle = Idle(self.limits.idle)
        meter = Meter(self._allowance, policy.most_bytes, idle.touch)
        try:
            with sock:
                async with idle.watch():
                    hurry = partial(idle.hurry, self.limits.silent)
                    yield UpstreamConnection(Outside(sock, meter), verdict, hurry)
        except TimeoutError:
            reason = "nothing moved for too long"
            raise
        except QuotaSpent:
            reason = "the chat used up its bytes for the day"
            raise
        except ConnectRefused as no:
            reason = str(no)
            raise
        except (OSError, SandboxError):
            reason = "the connection broke off"
            raise
        finally:
            seconds = round(time.monotonic() - began, 3)
            used = {"up": meter.up, "down": meter.down, "seconds": seconds}
            trail.record(AuditEvent.CLOSED, rule=verdict.rule, reason=reason, address=address, **used)

    def check_limits(self, policy: Policy, trail: AuditLog) -> None:
        """Denied when the chat has more than its share already."""
        reason = ""
        if self._allowance.connections > policy.most_connections:
            reason = f"more than {policy.most_connections} connections at once"
        elif self._allowance.spent(policy.most_bytes):
            reason = f"the chat used up its {policy.most_bytes >> 20} MiB for the day"
        elif self._allowance.blocked:
            reason = "the tenant or the user of this chat used up the bytes of the day"
        if reason:
            no = Denied(PolicyVerdict(False, "limits", reason))
            self._deny(policy, trail, no)
            raise no

    def _deny(self, policy: Policy, trail: AuditLog, no: Denied) -> None:
        self._allowance.tally.denied += 1
        trail.record(AuditEvent.DENIED, rule=no.verdict.rule, reason=no.verdict.reason, address=no.address)
        request, verdict = trail.request, no.verdict
        note = messages.note(policy, request, verdict.rule, verdict.reason)
        self._told(Refusal(str(request.target), note, messages.shown(policy, request, verdict.reason)))
