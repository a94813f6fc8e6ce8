"""What was counted in the last 24 hours, by the minute, of each tenant in the last hour, and the latest problems.

`Metrics` counts here in the same step as in the counters of /metrics. Bounded in memory; recent_file.py keeps it on
disk, so that a restart does not forget it.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MINUTE = 60
HOUR = 60
DAY = 24 * HOUR
"""In minutes."""
OTHER = "(other)"
"""Stands for all tenants that are too many; no tenant has this name."""
MAX_TENANTS = 200
MAX_PROBLEMS = 50
"""Of one tenant; of more, those that happened least lately are forgotten."""
MAX_NAMES = 64
"""Different things that are counted; more than there are."""

Minutes = dict[int, Counter[str]]
"""Counts by the minute since 1970."""


@dataclass(slots=True)
class Problem:
    """Something that went wrong in a chat, as often as it did so."""

    chat: str
    kind: str
    """call, egress, quota or load."""
    detail: str
    since: float
    at: float
    count: int = 1


@dataclass(slots=True)
class TenantRecord:
    """What is known of one tenant."""

    minutes: Minutes = field(default_factory=dict)
    problems: OrderedDict[tuple[str, str, str], Problem] = field(default_factory=OrderedDict)
    """By chat, kind and detail; the latest is the last."""


class Recent:
    """Adds and forgets; never waits."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.totals: Minutes = {}
        self.tenants: dict[str, TenantRecord] = {}
        self.version = 0
        """Changes with everything that is added or forgotten."""

    @property
    def minute(self) -> int:
        return int(self.clock()) // MINUTE

    def add(self, name: str, count: int = 1, tenant: str = "") -> None:
        """Count something, of a tenant if it is known whose it is."""
        if count <= 0:
            return
        now = self.minute
        _add(self.totals, now, name, count, DAY)
        if tenant:
            _add(self._record(tenant).minutes, now, name, count, HOUR)
        self.version += 1

    def note(self, tenant: str, chat: str, kind: str, detail: str, count: int = 1) -> None:
        """A problem of a chat, or another time the same."""
        record = self._record(tenant)
        if not chat or count <= 0 or record is self.tenants.get(OTHER):
            return
        known, name, now = record.problems, (chat, kind, detail), self.clock()
        problem = known.get(name)
        if problem is None or now - problem.at > HOUR * MINUTE:
            known[name] = Problem(chat, kind, detail, now, now, count)
        else:
            problem.at, problem.count = now, problem.count + count
        known.move_to_end(name)
        while len(known) > MAX_PROBLEMS:
            known.popitem(last=False)
        self.version += 1

    def forget(self, chat: str, tenant: str) -> None:
        """The chat is removed. What was counted stays its tenant's."""
        record = self.tenants.get(tenant)
        for name in [name for name in record.problems if name[0] == chat] if record is not None else ():
            del self.tenants[tenant].problems[name]
            self.version += 1

    # ---- what is asked

    def last_hour(self, tenant: str | None = None) -> Counter[str]:
        """What was counted, of one tenant or of all."""
        found: Counter[str] = Counter()
        first, last = self.minute - HOUR, self.minute
        for minute, counts in self._minutes(tenant).items():
            if first < minute <= last:
                found.update(counts)
        return found

    def series(self, tenant: str | None, steps: int, step: int) -> list[Counter[str]]:
        """The counts of the last so many steps, each of so many minutes; the last one is under way."""
        newest = self.minute // step
        found: list[Counter[str]] = [Counter() for _ in range(steps)]
        for minute, counts in self._minutes(tenant).items():
            place = steps - 1 - (newest - minute // step)
            if 0 <= place < steps:
                found[place].update(counts)
        return found

    def problems(self, tenant: str | None = None) -> Iterator[tuple[str, Problem]]:
        """Those of the last hour, of one tenant or of all, with the tenant."""
        first = self.clock() - HOUR * MINUTE
        for name in [tenant] if tenant is not None else list(self.tenants):
            record = self.tenants.get(name)
            for problem in record.problems.values() if record is not None else ():
                if problem.at > first:
                    yield name, problem

    def _minutes(self, tenant: str | None) -> Minutes:
        if tenant is None:
            return self.totals
        record = self.tenants.get(tenant)
        return record.minutes if record is not None else {}

    def _record(self, tenant: str) -> TenantRecord:
        record = self.tenants.get(tenant)
        if record is not None:
            return record
        if len(self.tenants) >= MAX_TENANTS:
            self._forget_quiet_tenants()
        name = tenant if len(self.tenants) < MAX_TENANTS else OTHER
        return self.tenants.setdefault(name, TenantRecord())

    def _forget_quiet_tenants(self) -> None:
        first = self.minute - HOUR
        for tenant, record in list(self.tenants.items()):
            if not any(minute > first for minute in record.minutes):
                del self.tenants[tenant]


def _add(minutes: Minutes, now: int, name: str, count: int, most: int) -> None:
    counts = minutes.get(now)
    if counts is None:
        # A clock that was set back leaves minutes that are to come: they are kept as long as others.
        for minute in [minute for minute in minutes if not now - most < minute < now + most]:
            del minutes[minute]
        counts = minutes[now] = Counter()
    counts[name] += count
