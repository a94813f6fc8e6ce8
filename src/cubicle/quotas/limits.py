"""The limits of a tenant, of a user and of a key, and the errors that say which one is reached and when that ends.

QuotaExceeded   a limit of the caller is reached
Overloaded      the host is short; the caller has more than its share under way
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Self

from cubicle.core.api_keys import KeyLimits
from cubicle.core.keys import KeyRing
from cubicle.operation_settings import OperationSettings


class Scope(StrEnum):
    """Whose limit it is."""

    TENANT = "tenant"
    USER = "user"
    KEY = "key"
    """An API key, beside what its tenant and user may."""


class Limit(StrEnum):
    """What is limited; also a label of the metrics."""

    CALLS = "calls"
    RATE = "calls_per_minute"
    CPU = "cpu_seconds_per_day"
    EGRESS = "egress_bytes_per_day"
    DISK = "disk"
    SANDBOXES = "sandboxes"


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Of one tenant, user or key; 0 is no limit."""

    calls: int = 0
    per_minute: int = 0
    cpu_seconds: float = 0
    egress_bytes: int = 0
    disk_bytes: int = 0
    sandboxes: int = 0

    def divided(self, share: int) -> Self:
        """Of one of so many processes: calls at once and in a minute, rounded up."""
        if share == 1:
            return self
        return replace(self, calls=-(-self.calls // share), per_minute=-(-self.per_minute // share))

    @classmethod
    def of(cls, settings: OperationSettings, scope: Scope) -> Self:
        def found(name: str) -> int:
            return int(getattr(settings, f"{scope.value}_{name}"))

        return cls(
            calls=found("max_calls"),
            per_minute=found("calls_per_minute"),
            cpu_seconds=found("cpu_seconds_per_day"),
            egress_bytes=found("egress_mb_per_day") << 20,
            disk_bytes=found("disk_mb") << 20,
            sandboxes=found("max_sandboxes"),
        )


class Subject(NamedTuple):
    """One whose use is counted: a tenant, a user of it, or a key of it."""

    scope: Scope
    tenant: str
    name: str = ""
    """Of the user; of a key its id."""


def setting_name(scope: Scope, name: str) -> str:
    """Where a limit is set, for whoever has reached it."""
    return "`cubicle keys list` shows the limits of a key" if scope is Scope.KEY else f"{scope.value.upper()}_{name}"


class LimitTable:
    """The limits of every subject: tenants and users have those of the settings, each key those of its entry."""

    def __init__(self, settings: Mapping[Scope, QuotaLimits], keys: KeyRing | None = None, *, share: int = 1) -> None:
        """`share`: the processes among which calls at once and in a minute are divided."""
        self._settings = {scope: limits.divided(share) for scope, limits in settings.items()}
        self._keys = keys
        self._share = share

    def of(self, subject: Subject) -> QuotaLimits:
        if subject.scope is not Scope.KEY:
            return self._settings[subject.scope]
        found = self._keys.limits(subject.name) if self._keys is not None else KeyLimits()
        limits = QuotaLimits(found.calls_at_once, found.calls_per_minute, sandboxes=found.sandboxes)
        return limits.divided(self._share)

    @property
    def sandboxes(self) -> bool:
        """Whether anybody has a limit of sandboxes."""
        keys = self._keys is not None and self._keys.has_limits
        return keys or any(limits.sandboxes for limits in self._settings.values())


class Standing(NamedTuple):
    """How much of a limit is used."""

    limit: Limit
    used: float
    most: float


class QuotaExceeded(Exception):
    """A limit is reached; the message says which one and when that ends."""

    def __init__(self, limit: Limit, scope: Scope, sentence: str, seconds: float) -> None:
        self.limit, self.scope, self.seconds = limit, scope, max(1, math.ceil(seconds))
        super().__init__(f"{sentence} Try again in {duration(self.seconds)}.")


class Overloaded(Exception):
    """The host is short of something, and no new work of this tenant is begun for now."""

    def __init__(self, reason: str, sentence: str, seconds: int) -> None:
        self.reason, self.seconds = reason, seconds
        super().__init__(f"{sentence} What runs goes on. Try again in {duration(seconds)}.")


def duration(seconds: int) -> str:
    """A time for people."""
    if seconds >= 7200:
        return f"{math.ceil(seconds / 3600)} hours"
    if seconds >= 120:
        return f"{math.ceil(seconds / 60)} minutes"
    return f"{seconds} second{'s' if seconds != 1 else ''}"
