"""What the admin page shows, made of the metrics, the counts of the last day, the fleet, quotas and budgets."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from cubicle.agents.budget import BudgetStore
from cubicle.chat.activity import Activity
from cubicle.core.keys import KeyRing
from cubicle.core.text import one_line
from cubicle.http_api.gauges import Gauges
from cubicle.http_api.overview_models import (
    BudgetUse,
    HistoryShown,
    HostNumbers,
    IsolationState,
    LastHour,
    ProblemKind,
    ProblemShown,
    QueuedStart,
    QuotaUse,
    Series,
    ServiceNumbers,
    TenantList,
    TenantShown,
)  # fmt: skip
from cubicle.http_api.sandbox_stats import SandboxStats
from cubicle.http_api.sandbox_table import Entry, View, natural
from cubicle.isolation.startup_check import StartupCheck
from cubicle.machine.errors import SandboxError
from cubicle.metrics.loop_lag import LoopLag
from cubicle.metrics.metrics import WELL
from cubicle.metrics.recent import MINUTE, OTHER, Recent
from cubicle.quotas.quotas import Quotas
from cubicle.sandbox.driver import CONDITIONS, State
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.slot import Overview
from cubicle.sandbox.trash import Discarded

MAX_TENANTS = 100
"""Tenants that are shown at once: those that do most."""
_MAX_KNOWN = 2000
_MAX_PROBLEMS = 100
_MAX_QUEUE = 20
_TRASH_SECONDS = 20.0
_ASK_SECONDS = 3.0
_DISK_STEP = 100_000_000
_NOT_CALLS = ("refused", "shed", "http_5xx")
_COUNTERS = (
    "cubicle_tool_calls_total", "cubicle_egress_decisions_total", "cubicle_quota_refusals_total",
    "cubicle_load_shed_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the numbers come from."""

    fleet: Fleet
    activity: Activity
    gauges: Gauges
    lag: LoopLag
    quotas: Quotas
    budgets: BudgetStore
    startup_check: StartupCheck
    ring: KeyRing
    stats: SandboxStats

    @property
    def recent(self) -> Recent:
        return self.gauges.metrics.recent


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment, for all who look."""

    number: int
    entries: Sequence[Entry]
    values: Mapping[tuple[str, tuple[str, ...]], float]
    trash: Sequence[Discarded]

    def value(self, name: str) -> float:
        """A number of /metrics, of all its labels together."""
        return sum(value for (each, _), value in self.values.items() if each == name)


class Numbers:
    """Takes snapshots, and makes each part of the page from one."""

    def __init__(self, sources: Sources) -> None:
        self._of = sources
        self._count = 0
        self._trash: tuple[float, Sequence[Discarded]] = (-_TRASH_SECONDS, ())

    async def snapshot(self) -> Snapshot:
        seen = await self._of.gauges.measure()
        self._count += 1
        trash = await self._discarded()
        values = await asyncio.to_thread(self._of.gauges.metrics.values)
        return Snapshot(self._count, self._entries(seen), values, trash)

    def _entries(self, seen: Sequence[Overview]) -> list[Entry]:
        errors = Counter[tuple[str, str]]()
        for tenant, problem in self._of.recent.problems():
            if problem.kind == "call":
                errors[tenant, problem.chat] += problem.count
        entries = []
        for each in seen:
            if each.chat is not None:
                tool, user = self._of.activity.last_of(each.digest)
                found = errors[each.chat.tenant, each.chat.id] if errors else 0
                entries.append(Entry(each, each.chat, tool, user, self._of.stats.of(each.name), found))
        return entries

    async def _discarded(self) -> Sequence[Discarded]:
        at, known = self._trash
        if time.monotonic() - at < _TRASH_SECONDS:
            return known
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                known = await self._of.fleet.trash()
        except (SandboxError, OSError, TimeoutError):
            pass  # what was known is shown
        self._trash = (time.monotonic(), known)
        return known

    # ---- the parts of the page

    def service(self, snapshot: Snapshot, entries: Sequence[Entry], view: View) -> ServiceNumbers:
        """`entries` are those that the view may see."""
        states = Counter(entry.seen.state for entry in entries)
        starts = self._of.quotas.starts
        waiting = [each for each in starts.waiting() if view.shows(each[0])]
        queue: list[QueuedStart] = [
            {"chat": chat.id, "tenant": chat.tenant, "user": one_line(user, 200), "position": starts.position(chat),
             "since": round(since)}
            for chat, user, since in waiting[:_MAX_QUEUE]
        ]  # fmt: skip
        trash = [each.note for each in snapshot.trash if each.note is not None and view.shows(each.note.chat)]
        numbers: ServiceNumbers = {
            "sandboxes": {CONDITIONS[state]: states[state] for state in State},
            "leases": sum(entry.seen.leases for entry in entries),
            "calls_running": self._of.quotas.under_way(view.one_tenant),
            "last_hour": self._last_hour(view.one_tenant),
            "waiting": len(waiting),
            "queue": queue,
            "in_trash": len(trash),
            "trash_bytes": sum(note.size or 0 for note in trash),
        }
        if view.operator:
            numbers["host"] = self._host(snapshot)
            numbers["isolation"] = self._isolation()
        return numbers

    def _last_hour(self, tenant: str | None) -> LastHour:
        counts = self._of.recent.last_hour(tenant)
        outcomes = {name: count for name, count in sorted(counts.items()) if _is_call(name)}
        return {
            "calls": sum(outcomes.values()),
            "errors": _errors(counts),
            "outcomes": outcomes,
            "egress_allowed": counts["egress_allowed"],
            "egress_denied": counts["egress_denied"],
            "egress_failed": counts["egress_failed"],
            "refused": counts["refused"],
            "shed": counts["shed"],
        }

    def _host(self, snapshot: Snapshot) -> HostNumbers:
        gauges = self._of.gauges
        return {
            "pool_ready": int(snapshot.value("cubicle_pool_ready")),
            "pool_size": int(snapshot.value("cubicle_pool_size")),
            "disk_free": int(snapshot.value("cubicle_disk_free_bytes")) // _DISK_STEP * _DISK_STEP,
            "disk_floor": int(snapshot.value("cubicle_disk_floor_bytes")),
            "websockets": int(snapshot.value("cubicle_websockets")),
            "lag_ms": round(self._of.lag.typical * 100) * 10,
            "http_5xx": self._of.recent.last_hour()["http_5xx"],
            "audit": "failing" if gauges.audit.error else "written" if gauges.audit.keeps else "off",
            "webhooks": gauges.webhooks.enabled,
            "webhooks_waiting": int(snapshot.values.get(("cubicle_webhooks", ("waiting",)), 0)),
            "webhooks_dead": int(snapshot.values.get(("cubicle_webhooks", ("dead",)), 0)),
            "counters": {name: snapshot.value(name) for name in _COUNTERS},
        }

    def _isolation(self) -> IsolationState:
        proof = self._of.startup_check.proof
        if proof is None:
            return {"strength": "none", "holds": False, "checked_at": None, "missing": [], "not_checked": 0}
        report = proof.report
        return {
            "strength": report.strength.value,
            "holds": not report.missing and not report.unchecked,
            "checked_at": round(proof.at),
            "missing": sorted({finding.layer for finding in report.missing})[:50],
            "not_checked": len(report.unchecked),
        }

    async def tenants(self, entries: Sequence[Entry], view: View) -> TenantList:
        sandboxes = Counter(entry.chat.tenant for entry in entries)
        running = Counter(entry.chat.tenant for entry in entries if entry.seen.state is State.RUNNING)
        waiting = Counter(chat.tenant for chat, _, _ in self._of.quotas.starts.waiting())
        if view.one_tenant is not None:
            names = {view.one_tenant}
        else:
            names = {*sandboxes, *waiting, *self._of.recent.tenants, *islice(self._of.ring.tenants, _MAX_KNOWN)} - {
                OTHER
            }
        hours = {name: self._of.recent.last_hour(name) for name in names}
        busiest = sorted(names, key=lambda name: (-running[name], -sandboxes[name], -hours[name].total(), name))
        rows: list[TenantShown] = []
        for name in sorted(busiest[:MAX_TENANTS], key=natural):
            hour = hours[name]
            standing = await self._of.quotas.standing(name, running[name])
            quotas: list[QuotaUse] = [
                {"limit": each.limit.value, "used": round(each.used, 1), "most": each.most} for each in standing
            ]
            rows.append(
                {
                    "tenant": name,
                    "sandboxes": sandboxes[name],
                    "running": running[name],
                    "waiting": waiting[name],
                    "calls": sum(count for each, count in hour.items() if _is_call(each)),
                    "errors": _errors(hour),
                    "denied": hour["egress_denied"],
                    "refused": hour["refused"] + hour["shed"],
                    "quotas": quotas,
                    "budget": await self._budget(name),
                }
            )
        return {"rows": rows, "total": len(names)}

    async def _budget(self, tenant: str) -> BudgetUse:
        spent, most = await self._of.budgets.spent_by(tenant), self._of.budgets.tenant_limits
        return {
            "dollars": round(spent.dollars, 4),
            "most_dollars": most.dollars,
            "requests": spent.requests,
            "most_requests": most.requests,
            "tokens": spent.tokens,
            "most_tokens": most.tokens,
        }

    def problems(self, view: View) -> list[ProblemShown]:
        found: list[ProblemShown] = [
            {"tenant": tenant, "chat": problem.chat, "kind": cast(ProblemKind, problem.kind), "detail": problem.detail,
             "since": round(problem.since), "at": round(problem.at), "count": problem.count}
            for tenant, problem in self._of.recent.problems(view.one_tenant)
            if view.may_see(problem.chat)
        ]  # fmt: skip
        return sorted(found, key=lambda each: (-each["at"], each["tenant"], each["chat"]))[:_MAX_PROBLEMS]

    def history(self, view: View) -> HistoryShown:
        recent, tenant = self._of.recent, view.one_tenant
        shown: HistoryShown = {"hour": _series(recent, tenant, 60, 1)}
        if tenant is None:
            shown["day"] = _series(recent, None, 96, 15)
        return shown


def _series(recent: Recent, tenant: str | None, steps: int, step: int) -> Series:
    counts = recent.series(tenant, steps, step)
    return {
        "end": (recent.minute // step + 1) * step * MINUTE,
        "step": step * MINUTE,
        "calls": [sum(count for name, count in each.items() if _is_call(name)) for each in counts],
        "errors": [_errors(each) for each in counts],
        "denied": [each["egress_denied"] for each in counts],
        "refused": [each["refused"] + each["shed"] for each in counts],
    }


def _is_call(name: str) -> bool:
    """Whether it is the outcome of a call."""
    return name not in _NOT_CALLS and not name.startswith("egress_")


def _errors(counts: Counter[str]) -> int:
    return sum(count for name, count in counts.items() if _is_call(name) and name not in WELL)
