"""Calls at once and calls per minute, of each tenant and user."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from limits import RateLimitItemPerMinute
from limits.strategies import FixedWindowRateLimiter

from cubicle.chat.key_attempts import BoundedCounters
from cubicle.quotas.limits import Limit, QuotaExceeded, QuotaLimits, Scope, Subject

_MAX_COUNTERS = 20_000
_BUSY_SECONDS = 2
"""When a caller that has all its calls under way may try again: one of them may end any moment."""


class CallQuotas:
    """Counts calls; refuses those beyond the limits."""

    def __init__(self, limits: Mapping[Scope, QuotaLimits], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._is_limited = {scope: bool(each.calls or each.per_minute) for scope, each in limits.items()}
        self._clock = clock
        self._counted = FixedWindowRateLimiter(BoundedCounters(_MAX_COUNTERS, clock))
        self._under_way: Counter[Subject] = Counter()
        self._tenants: Counter[str] = Counter()

    @property
    def tenants(self) -> Mapping[str, int]:
        """Calls under way, by tenant."""
        return self._tenants

    def in_this_minute(self, tenant: str) -> int:
        """Calls of a tenant in the minute that its limit counts; 0 without a limit."""
        rate = self._limits[Scope.TENANT].per_minute
        if not rate:
            return 0
        stats = self._counted.get_window_stats(RateLimitItemPerMinute(rate), *_key(Subject(Scope.TENANT, tenant)))
        return rate - stats.remaining

    @contextmanager
    def counted(self, subjects: Sequence[Subject]) -> Iterator[None]:
        """A call, for as long as the block lasts. Raises QuotaExceeded before it begins."""
        tenant = subjects[0].tenant
        subjects = [subject for subject in subjects if self._is_limited[subject.scope]]
        for subject in subjects:
            self._require(subject)
        self._tenants[tenant] += 1
        for subject in subjects:
            self._under_way[subject] += 1
            if rate := self._limits[subject.scope].per_minute:
                self._counted.hit(RateLimitItemPerMinute(rate), *_key(subject))
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
            for subject in subjects:
                self._under_way[subject] -= 1
                if not self._under_way[subject]:
                    del self._under_way[subject]

    def _require(self, subject: Subject) -> None:
        scope, limits = subject.scope, self._limits[subject.scope]
        if limits.calls and self._under_way[subject] >= limits.calls:
            sentence = (
                f"This {scope} has {limits.calls} calls under way, as many as it may ({_setting(scope)}_MAX_CALLS)."
            )
            raise QuotaExceeded(Limit.CALLS, scope, sentence, _BUSY_SECONDS)
        if not limits.per_minute:
            return
        item, key = RateLimitItemPerMinute(limits.per_minute), _key(subject)
        if not self._counted.test(item, *key):
            ends = self._counted.get_window_stats(item, *key).reset_time - self._clock()
            sentence = (
                f"This {scope} has made the {limits.per_minute} calls that it may make in a minute "
                f"({_setting(scope)}_CALLS_PER_MINUTE)."
            )
            raise QuotaExceeded(Limit.RATE, scope, sentence, ends)


def _key(subject: Subject) -> tuple[str, str, str]:
    return subject.scope.value, subject.tenant, subject.user


def _setting(scope: Scope) -> str:
    return scope.value.upper()
