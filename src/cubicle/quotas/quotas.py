"""The quotas of one service: what a call or a request is checked against before it begins."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from cubicle.core.chat import Chat
from cubicle.egress.tally import EgressReport
from cubicle.machine.errors import SandboxError
from cubicle.metrics.loop_lag import LoopLag
from cubicle.metrics.metrics import Metrics
from cubicle.quotas.call_quotas import CallQuotas
from cubicle.quotas.daily_usage import DailyUsage
from cubicle.quotas.limits import Limit, Overloaded, QuotaExceeded, QuotaLimits, Scope, Subject
from cubicle.quotas.load_shedding import LoadShedding
from cubicle.quotas.start_queue import StartQueue
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

FOLDER = "quotas"
_MAX_USERS = 20_000
_MAX_REPORTS = 10_000
_KEEP_SECONDS = 1.0
_SAMPLE_EVERY = 15
"""Turns of `_KEEP_SECONDS` between two looks at what the sandboxes use."""
_SAVE_EVERY = 5
_ASK_SECONDS = 3.0
_MAX_CONCURRENT = 8
_DISK_SECONDS = 60.0


class EgressBlocks(Protocol):
    """Who may send and receive nothing more, as the egress proxy is told."""

    spent_tenants: Sequence[str]
    spent_chats: Sequence[str]


class Quotas:
    """Asked by tools and HTTP routes; fed by the network worker's reports and by looks at the sandboxes."""

    def __init__(self, settings: Settings, metrics: Metrics, lag: LoopLag, egress: EgressBlocks) -> None:
        self.limits = {scope: QuotaLimits.of(settings, scope) for scope in Scope}
        self._counts_users = self.limits[Scope.USER] != QuotaLimits()
        self._metrics = metrics
        self._calls = CallQuotas(self.limits)
        self._daily = DailyUsage(settings.data_dir / FOLDER)
        self._shedding = LoadShedding(settings.shed_memory_mb << 20, settings.shed_lag_ms / 1000, lambda: lag.typical)
        self._users: OrderedDict[str, str] = OrderedDict()
        """Who used a chat last, by the chat's digest."""
        self._fleet: Fleet | None = None
        self._began = 0.0
        self.starts = StartQueue(
            self.limits,
            settings.max_sandboxes,
            patience=settings.start_queue_seconds,
            running=self._up,
            user_of=lambda digest: self._users.get(digest, ""),
            waited=metrics.start_wait.observe,
            refused=self._refused_start,
        )
        self._reports: list[EgressReport] = []
        self._egress = egress
        self.on_reached: Callable[[str, str | None, Limit, Scope], None] = lambda tenant, user, limit, scope: None
        """Told of the tenant, the user and the limit each time that something is refused."""
        self._cpu: dict[str, float] = {}
        """Seconds of each sandbox at the last look, by its name."""
        self._disk: dict[str, tuple[Subject, Subject | None, int]] = {}
        """Bytes of each chat's sandbox at the last look, by the chat's digest."""

    @asynccontextmanager
    async def call(self, chat: Chat, user: str | None, *, writes: bool = False) -> AsyncIterator[None]:
        """One call or request, for as long as the block lasts. Raises QuotaExceeded, Overloaded before it begins.

        With `writes` it brings more onto the disk, and is refused when that is used up.
        """
        self._note_user(chat, user)
        subjects = _subjects(chat, user)
        try:
            self._shedding.require(chat.tenant, self._calls.tenants)
            for subject in subjects:
                await self._require_day(subject)
                if self.limits[subject.scope].disk_bytes and (writes or not self._has_sandbox(chat)):
                    self._require_disk(subject)
            counted = self._calls.counted(subjects)
            counted.__enter__()
        except QuotaExceeded as over:
            self._metrics.refusals.labels(over.limit.value, over.scope.value).inc()
            self.on_reached(chat.tenant, user, over.limit, over.scope)
            raise
        except Overloaded as over:
            self._metrics.shed.labels(over.reason).inc()
            raise
        try:
            yield
        finally:
            counted.__exit__(None, None, None)

    @asynccontextmanager
    async def running(self, fleet: Fleet) -> AsyncIterator[None]:
        """Count what is used, within the block."""
        self._fleet, self._began = fleet, time.monotonic()
        await asyncio.to_thread(self._daily.open)
        keeper = start_task(self._keep(fleet), name="quotas")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])
            await self.starts.close()
            await self.count_egress()
            await self._daily.save()

    def take(self, report: EgressReport) -> None:
        """What the egress proxy did for a chat."""
        if report.tally.sent + report.tally.received and len(self._reports) < _MAX_REPORTS:
            self._reports.append(report)

    def _refused_start(self, chat: Chat, user: str, limit: Limit, scope: Scope) -> None:
        self._metrics.refusals.labels(limit.value, scope.value).inc()
        self.on_reached(chat.tenant, user, limit, scope)

    def forget(self, chat: Chat) -> None:
        """The chat is removed. What it used stays its tenant's and its user's until their day is over."""
        self._users.pop(chat.digest, None)
        self._disk.pop(chat.digest, None)

    # ---- what is asked

    async def _require_day(self, subject: Subject) -> None:
        limits, scope = self.limits[subject.scope], subject.scope
        if not limits.cpu_seconds and not limits.egress_bytes:
            return
        use = await self._daily.of(subject)
        name = scope.value.upper()
        if limits.cpu_seconds and use.cpu_seconds >= limits.cpu_seconds:
            sentence = (
                f"The sandboxes of this {scope} have used the {limits.cpu_seconds:g} CPU seconds that they may use in "
                f"24 hours ({name}_CPU_SECONDS_PER_DAY)."
            )
            raise QuotaExceeded(Limit.CPU, scope, sentence, self._daily.left(use))
        if limits.egress_bytes and use.egress_bytes >= limits.egress_bytes:
            sentence = (
                f"The sandboxes of this {scope} have sent and received the {limits.egress_bytes >> 20} MiB that they "
                f"may in 24 hours ({name}_EGRESS_MB_PER_DAY)."
            )
            raise QuotaExceeded(Limit.EGRESS, scope, sentence, self._daily.left(use))

    def _require_disk(self, subject: Subject) -> None:
        most = self.limits[subject.scope].disk_bytes
        if most and sum(size for tenant, user, size in self._disk.values() if subject in (tenant, user)) >= most:
            sentence = (
                f"The sandboxes of this {subject.scope} hold the {most >> 20} MiB that they may "
                f"({subject.scope.value.upper()}_DISK_MB). Remove files or chats that are not needed."
            )
            raise QuotaExceeded(Limit.DISK, subject.scope, sentence, _DISK_SECONDS)

    def _has_sandbox(self, chat: Chat) -> bool:
        return self._fleet is not None and self._fleet.has(chat)

    def _note_user(self, chat: Chat, user: str | None) -> None:
        if user and self._counts_users:
            digest = chat.digest
            self._users[digest] = user
            self._users.move_to_end(digest)
            while len(self._users) > _MAX_USERS:
                self._users.popitem(last=False)

    # ---- what is used

    def _up(self) -> list[tuple[str, str]]:
        seen = self._fleet.overview() if self._fleet is not None else []
        up = (State.RUNNING, State.STARTING)
        return [(each.digest, each.chat.tenant) for each in seen if each.chat is not None and each.state in up]

    async def _keep(self, fleet: Fleet) -> None:
        turns = 0
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            turns += 1
            try:
                await self._shedding.look()
                self._metrics.starts_waiting.set(len(self.starts))
                await self.count_egress()
                if turns % _SAMPLE_EVERY == 0:
                    await self.sample(fleet)
                if turns % _SAVE_EVERY == 0:
                    await self._daily.save()
            except Exception:
                log.exception("what tenants use could not be counted")

    async def count_egress(self) -> None:
        """Add what was reported to what was used, and have the egress proxy hold back whoever used up the day."""
        reports, self._reports = self._reports, []
        if not any(limits.egress_bytes for limits in self.limits.values()):
            return
        used: Counter[Subject] = Counter()
        for report in reports:
            for subject in _subjects(report.chat, self._users.get(report.chat.digest)):
                used[subject] += report.tally.sent + report.tally.received
        for subject, amount in used.items():
            await self._daily.add(subject, egress_bytes=amount)
        spent = {
            subject
            for subject, use in self._daily.known()
            if (most := self.limits[subject.scope].egress_bytes) and use.egress_bytes >= most
        }
        self._egress.spent_tenants = sorted(subject.tenant for subject in spent if subject.scope is Scope.TENANT)[:500]
        users = {(subject.tenant, subject.user) for subject in spent if subject.scope is Scope.USER}
        up = self._up() if users else []
        self._egress.spent_chats = [digest for digest, tenant in up if (tenant, self._users.get(digest, "")) in users][
            :500
        ]

    async def sample(self, fleet: Fleet) -> None:
        """Look at what each running sandbox has used since the last look."""
        if not any(limits.cpu_seconds or limits.disk_bytes for limits in self.limits.values()):
            return
        gate = asyncio.Semaphore(_MAX_CONCURRENT)
        seen = [each for each in fleet.overview() if each.chat is not None and each.state is State.RUNNING]

        async def look(chat: Chat, name: str) -> None:
            async with gate:
                try:
                    async with asyncio.timeout(_ASK_SECONDS), fleet.look(chat) as machine:
                        stats = await machine.stats()
                except (SandboxError, TimeoutError):
                    return
            subjects = _subjects(chat, self._users.get(chat.digest))
            if stats.disk_used is not None:
                self._disk[chat.digest] = (subjects[0], subjects[1] if len(subjects) > 1 else None, stats.disk_used)
            if stats.cpu_seconds is not None:
                used = self._cpu_used(name, stats.cpu_seconds, stats.uptime)
                for subject in subjects:
                    await self._daily.add(subject, cpu_seconds=used)

        await asyncio.gather(*(look(each.chat, each.name) for each in seen if each.chat is not None))
        names = {each.name for each in seen}
        self._cpu = {name: seconds for name, seconds in self._cpu.items() if name in names}

    def _cpu_used(self, name: str, seconds: float, uptime: float) -> float:
        """Since the last look. What a sandbox used before this service began was counted by the one before."""
        before = self._cpu.get(name)
        self._cpu[name] = seconds
        if before is None:
            return seconds if uptime <= time.monotonic() - self._began else 0.0
        return seconds - before if seconds >= before else seconds  # fewer: it was started anew


def _subjects(chat: Chat, user: str | None) -> tuple[Subject, ...]:
    """Whose limits hold for a call: the tenant's, and those of its user if one is named."""
    tenant = Subject(Scope.TENANT, chat.tenant)
    return (tenant, Subject(Scope.USER, chat.tenant, user)) if user else (tenant,)
