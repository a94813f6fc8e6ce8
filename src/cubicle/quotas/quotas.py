"""The quotas of one service: what a call or a request is checked against before it begins."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.egress.tally import EgressReport
from cubicle.machine.errors import SandboxError, StartRefused
from cubicle.metrics.loop_lag import LoopLag
from cubicle.metrics.metrics import Metrics
from cubicle.quotas.call_quotas import CallQuotas
from cubicle.quotas.daily_usage import DailyUsage
from cubicle.quotas.disk_usage import DiskUsage
from cubicle.quotas.limits import Limit, LimitTable, Overloaded, QuotaExceeded, QuotaLimits, Scope, Standing, Subject
from cubicle.quotas.load_shedding import LoadShedding
from cubicle.quotas.owners import ChatOwners, subjects_of
from cubicle.quotas.start_queue import StartQueue
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

FOLDER = "quotas"
_MAX_REPORTS = 10_000
_KEEP_SECONDS = 1.0
_SAMPLE_EVERY = 15
"""Turns of `_KEEP_SECONDS` between two looks at what the sandboxes use."""
_SAVE_EVERY = 5
_ASK_SECONDS = 3.0
_MAX_CONCURRENT = 8
_DISK_SECONDS = 60.0
_CLOCK_ERROR = 1.0
"""Seconds by which two looks may differ about the start of a sandbox."""
_NO_LIMITS = QuotaLimits()


class EgressBlocks(Protocol):
    """Who may send and receive nothing more, as the egress proxy is told."""

    spent_tenants: Sequence[str]
    spent_chats: Sequence[str]


class Quotas:
    """Asked by tools and HTTP routes; fed by the network worker's reports and by looks at the sandboxes."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        lag: LoopLag,
        egress: EgressBlocks,
        keys: KeyRing | None = None,
        own: Callable[[Path], Path] = lambda path: path,
        others: Callable[[Path], Sequence[Path]] = lambda path: (),
    ) -> None:
        """`keys`: those with limits of their own. `own`: where one of several processes keeps what it counts, `others`:
        where the others do. What a day or a disk may hold is for all of them; calls at once and in a minute are divided
        among the workers."""
        folder = settings.data_dir / FOLDER
        self.limits = {scope: QuotaLimits.of(settings, scope) for scope in (Scope.TENANT, Scope.USER)}
        self._table = LimitTable(self.limits, keys, share=settings.workers)
        self._metrics = metrics
        self._calls = CallQuotas(self._table)
        self._daily = DailyUsage(own(folder), others=others(folder))
        self._shedding = LoadShedding(settings.shed_memory_mb << 20, settings.shed_lag_ms / 1000, lambda: lag.typical)
        self._users_have_budgets = bool(settings.sub_agent_user_budget_usd)
        self._owners = ChatOwners(self._is_noted)
        self._fleet: Fleet | None = None
        self._began = 0.0
        self.starts = StartQueue(
            self._table,
            settings.max_sandboxes,
            patience=settings.start_queue_seconds,
            running=self._up,
            owners=self._owners.of,
            waited=metrics.start_wait.observe,
            refused=self._refused,
        )
        self.on_reached: Callable[[str, str | None, Limit, Scope], None] = lambda tenant, user, limit, scope: None
        """Told of the tenant, the user and the limit each time that something is refused."""
        self._reports: list[EgressReport] = []
        self._egress = egress
        self._cpu: dict[str, tuple[float, float]] = {}
        """Seconds of each sandbox at the last look, and when it was started, by its name."""
        self._disk = DiskUsage(own(folder), others(folder))

    @asynccontextmanager
    async def call(
        self, chat: Chat, user: str | None, key_id: str = "", *, writes: bool = False
    ) -> AsyncIterator[None]:
        """One call or request, for as long as the block lasts. Raises QuotaExceeded, Overloaded before it begins.

        With `writes` it brings more onto the disk, and is refused when that is used up.
        """
        subjects = subjects_of(chat, user, key_id)
        self._owners.note(chat, subjects)
        try:
            self._shedding.require(chat.tenant, self._calls.tenants)
            for subject in subjects:
                await self._require_day(subject)
                if self._table.of(subject).disk_bytes and (writes or not self._has_sandbox(chat)):
                    self._require_disk(subject)
            counted = self._calls.counted(subjects)
            counted.__enter__()
        except QuotaExceeded as over:
            self._refused(chat, user or "", over.limit, over.scope)
            raise
        except Overloaded as over:
            self._metrics.load_shed(over.reason, chat.tenant, chat.id)
            raise
        try:
            yield
        finally:
            counted.__exit__(None, None, None)

    @asynccontextmanager
    async def admitted(self, chat: Chat) -> AsyncIterator[None]:
        """Around each start of a sandbox, whatever wakes it: for whose day is used up it stays down. Raises
        StartRefused."""
        try:
            for subject in (*subjects_of(chat, None), *self._owners.of(chat.digest)):
                await self._require_day(subject)
        except QuotaExceeded as over:
            self._refused(chat, self.user_of(chat), over.limit, over.scope)
            raise StartRefused(str(over)) from None
        async with self.starts.admitted(chat):
            yield

    @asynccontextmanager
    async def running(self, fleet: Fleet) -> AsyncIterator[None]:
        """Count what is used, within the block."""
        self._fleet, self._began = fleet, time.monotonic()
        await asyncio.to_thread(self._daily.open)
        if any(limits.disk_bytes for limits in self.limits.values()):
            await asyncio.to_thread(self._disk.open)
            self._disk.keep_only({each.digest for each in fleet.overview()})
        keeper = start_task(self._keep(fleet), name="quotas")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])
            await self.starts.close()
            await self.count_egress()
            await self._daily.save()
            await self._disk.save()

    def take(self, report: EgressReport) -> None:
        """What the egress proxy did for a chat."""
        if report.tally.sent + report.tally.received and len(self._reports) < _MAX_REPORTS:
            self._reports.append(report)

    def forget(self, chat: Chat) -> None:
        """The chat is removed. What it used stays its tenant's and its user's until their day is over."""
        self._owners.forget(chat)
        self._disk.forget(chat.digest)

    def user_of(self, chat: Chat) -> str:
        """Who used the chat last, if users have limits."""
        return self._owners.user(chat.digest)

    # ---- what is asked

    def _is_noted(self, subject: Subject) -> bool:
        """Whether it matters whose the chat is."""
        return self._table.of(subject) != _NO_LIMITS or (subject.scope is Scope.USER and self._users_have_budgets)

    async def _require_day(self, subject: Subject) -> None:
        limits, scope = self._table.of(subject), subject.scope
        if not limits.cpu_seconds and not limits.egress_bytes:
            return
        use = await self._daily.total(subject)
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
        most = self._table.of(subject).disk_bytes
        if most and self._disk.used(subject) >= most:
            sentence = (
                f"The sandboxes of this {subject.scope} hold the {most >> 20} MiB that they may "
                f"({subject.scope.value.upper()}_DISK_MB). Remove files or chats that are not needed."
            )
            raise QuotaExceeded(Limit.DISK, subject.scope, sentence, _DISK_SECONDS)

    def _has_sandbox(self, chat: Chat) -> bool:
        return self._fleet is not None and self._fleet.has(chat)

    def _refused(self, chat: Chat, user: str, limit: Limit, scope: Scope) -> None:
        self._metrics.quota_refused(limit.value, scope.value, chat.tenant, chat.id)
        self.on_reached(chat.tenant, user, limit, scope)

    # ---- what is shown

    def under_way(self, tenant: str | None) -> int:
        """Calls and uploads of a tenant, or of all, that have not ended."""
        return sum(self._calls.tenants.values()) if tenant is None else self._calls.tenants.get(tenant, 0)

    async def standing(self, tenant: str, running: int) -> list[Standing]:
        """How much of each limit that is set a tenant has used, which has so many sandboxes running."""
        limits, found = self.limits[Scope.TENANT], []
        subject, day = Subject(Scope.TENANT, tenant), None
        if limits.cpu_seconds or limits.egress_bytes:
            day = await self._daily.total(subject)
        used: dict[Limit, float] = {
            Limit.SANDBOXES: running,
            Limit.CALLS: self._calls.tenants.get(tenant, 0),
            Limit.RATE: self._calls.in_this_minute(tenant),
            Limit.CPU: day.cpu_seconds if day is not None else 0,
            Limit.EGRESS: day.egress_bytes if day is not None else 0,
            Limit.DISK: self._disk.used(subject),
        }
        most: dict[Limit, float] = {
            Limit.SANDBOXES: limits.sandboxes,
            Limit.CALLS: limits.calls,
            Limit.RATE: limits.per_minute,
            Limit.CPU: limits.cpu_seconds,
            Limit.EGRESS: limits.egress_bytes,
            Limit.DISK: limits.disk_bytes,
        }
        for limit in Limit:
            if most[limit]:
                found.append(Standing(limit, used[limit], most[limit]))
        return found

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
                    await self._disk.save()
                    await self._disk.look()
            except Exception:
                log.exception("what tenants use could not be counted")

    async def count_egress(self) -> None:
        """Add what was reported to what was used, and have the egress proxy hold back whoever used up the day."""
        reports, self._reports = self._reports, []
        if not any(limits.egress_bytes for limits in self.limits.values()):
            return
        used: Counter[Subject] = Counter()
        for report in reports:
            for subject in subjects_of(report.chat, self._owners.user(report.chat.digest)):
                used[subject] += report.tally.sent + report.tally.received
        for subject, amount in used.items():
            await self._daily.add(subject, egress_bytes=amount)
        spent = {
            subject
            for subject, use in await self._daily.totals()
            if (most := self.limits[subject.scope].egress_bytes) and use.egress_bytes >= most
        }
        self._egress.spent_tenants = sorted(subject.tenant for subject in spent if subject.scope is Scope.TENANT)[:500]
        users = {(subject.tenant, subject.name) for subject in spent if subject.scope is Scope.USER}
        up = self._up() if users else []
        self._egress.spent_chats = [digest for digest, tenant in up if (tenant, self._owners.user(digest)) in users][
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
                await self._look(fleet, chat, name)

        await asyncio.gather(*(look(each.chat, each.name) for each in seen if each.chat is not None))
        names = {each.name for each in seen}
        self._cpu = {name: look for name, look in self._cpu.items() if name in names}

    async def count_cpu(self, chat: Chat) -> None:
        """Look at one sandbox before it is stopped: who stops it again and again before the next look saves nothing."""
        seen = self._fleet.state(chat) if self._fleet is not None else None
        limited = any(limits.cpu_seconds for limits in self.limits.values())
        if limited and self._fleet is not None and seen is not None and seen.state is State.RUNNING:
            await self._look(self._fleet, chat, seen.name)

    async def _look(self, fleet: Fleet, chat: Chat, name: str) -> None:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                stats = await fleet.usage(chat)
        except (SandboxError, TimeoutError):
            return
        if stats is None:
            return
        subjects = subjects_of(chat, self._owners.user(chat.digest))
        if stats.disk_used is not None:
            self._disk.note(chat.digest, subjects, stats.disk_used)
        if stats.cpu_seconds is not None:
            used = self._cpu_used(name, stats.cpu_seconds, stats.uptime)
            for subject in subjects:
                await self._daily.add(subject, cpu_seconds=used)

    def _cpu_used(self, name: str, seconds: float, uptime: float) -> float:
        """Since the last look. What a sandbox used before this service began was counted by the one before."""
        started = time.monotonic() - uptime
        before, self._cpu[name] = self._cpu.get(name), (seconds, started)
        if before is None:
            return seconds if started >= self._began else 0.0
        used, then = before
        anew = (uptime > 0 and started > then + _CLOCK_ERROR) or seconds < used  # guests of old say no uptime
        return seconds if anew else seconds - used
