"""Calls at once and calls per minute, of each tenant, user and key."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from limits import RateLimitItemPerMinute
from limits.strategies import FixedWindowRateLimiter

from cubicle.chat.key_attempts import BoundedCounters
from cubicle.quotas.limits import Limit, LimitTable, QuotaExceeded, QuotaLimits, Scope, Subject, setting_name

_MAX_COUNTERS = 20_000
_BUSY_SECONDS = 2
"""When a caller that has all its calls under way may try again: one of them may end any moment."""


class CallQuotas:
    """Counts calls; refuses those beyond the limits."""

    def __init__(self, limits: LimitTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        # Apart: many names of users take no place from the counters of tenants and keys.
        self._rates = {scope: FixedWindowRateLimiter(BoundedCounters(_MAX_COUNTERS, clock)) for scope in Scope}
        self._under_way: Counter[Subject] = Counter()
        self._tenants: Counter[str] = Counter()

    @property
    def tenants(self) -> Mapping[str, int]:
        """Calls under way, by tenant."""
        return self._tenants

    def in_this_minute(self, tenant: str) -> int:
        """Calls of a tenant in the minute that its limit counts; 0 without a limit."""
        subject = Subject(Scope.TENANT, tenant)
        rate = self._limits.of(subject).per_minute
        if not rate:
            return 0
        stats = self._rates[Scope.TENANT].get_window_stats(RateLimitItemPerMinute(rate), *_key(subject))
        return rate - stats.remaining

    @contextmanager
    def counted(self, subjects: Sequence[Subject]) -> Iterator[None]:
        """A call, for as long as the block lasts. Raises QuotaExceeded before it begins."""
        tenant = subjects[0].tenant
        found = [(subject, self._limits.of(subject)) for subject in subjects]
        held = [(subject, limits) for subject, limits in found if limits.calls or limits.per_minute]
        for subject, limits in held:
            self._require(subject, limits)
        self._tenants[tenant] += 1
        for subject, limits in held:
            self._under_way[subject] += 1
            if limits.per_minute:
                self._rates[subject.scope].hit(RateLimitItemPerMinute(limits.per_minute), *_key(subject))
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
            for subject, _ in held:
                self._under_way[subject] -= 1
                if not self._under_way[subject]:
                    del self._under_way[subject]

    def _require(self, subject: Subject, limits: QuotaLimits) -> None:
        scope, rates = subject.scope, self._rates[subject.scope]
        if limits.calls and self._under_way[subject] >= limits.calls:
            where = setting_name(scope, "MAX_CALLS")
            sentence = f"This {scope} has {limits.calls} calls under way, as many as it may ({where})."
            raise QuotaExceeded(Limit.CALLS, scope, sentence, _BUSY_SECONDS)
        if not limits.per_minute:
            return
        item, key = RateLimitItemPerMinute(limits.per_minute), _key(subject)
        if not rates.test(item, *key):
            ends = rates.get_window_stats(item, *key).reset_time - self._clock()
            sentence = (
                f"This {scope} has made the {limits.per_minute} calls that it may make in a minute "
                f"({setting_name(scope, 'CALLS_PER_MINUTE')})."
            )
            raise QuotaExceeded(Limit.RATE, scope, sentence, ends)


def _key(subject: Subject) -> tuple[str, str, str]:
    return subject.scope.value, subject.tenant, subject.name
