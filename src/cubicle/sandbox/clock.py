"""The clock by which chats age: it counts the time that a service runs, and no change of the date moves it.

Its reading is kept in DATA_DIR/clock.json, together with the reading at which each chat was last used: one file,
replaced as a whole, so the two always belong together. docs/chat-lifetime.md has the rule in words.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cubicle import durable, record
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

DAY = 86400.0
QUIET_SECONDS = 3600.0
_JUMP_SECONDS = 60.0
_PAUSE_SECONDS = 300.0
CLOCK_FILE = "clock.json"
_VERSION = 1
_MAX_SIZE = 64 * 1024**2


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@dataclass(frozen=True, slots=True)
class Clock:
    """The machine's clocks."""

    wall: Callable[[], float] = time.time
    """The date. Anybody may set it, to anything, at any time."""
    elapsed: Callable[[], float] = _boot_time
    """Seconds since the machine started, time asleep included. It only goes forwards."""
    boot: Callable[[], str] = _boot_id
    """Which start of the machine `elapsed` counts from."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is on disk: a reading of the service clock, what the machine's clocks showed then, and last uses."""

    reading: float = 0.0
    wall: float = 0.0
    elapsed: float = 0.0
    boot: str = ""
    uses: Mapping[str, float] = field(default_factory=dict)


class ServiceClock:
    """Seconds of service over one DATA_DIR, across restarts.

    `tick` is to be called about once a minute. Between two ticks, and between two services, at most `max_gap` counts.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Clock | None = None,
        max_gap: float = DAY,
        quiet: float = QUIET_SECONDS,
    ) -> None:
        self._path = path
        self._clock = clock or Clock()
        self._max_gap = max_gap
        self._quiet = quiet
        self._reading = 0.0
        self._pending = 0.0
        """Time that the machine was off, by the date: it counts once the date has stood still for the quiet time."""
        self._at = self._calm_since = self._clock.elapsed()
        self._wall_at = self._clock.wall()
        self._uses: Mapping[str, float] = {}

    def open(self) -> None:
        """Go on from where the service before ended."""
        kept = _read_all(self._path) if self._path is not None else Kept()
        self._at = self._calm_since = self._clock.elapsed()
        self._wall_at = self._clock.wall()
        self._uses = kept.uses
        self._reading, self._pending = kept.reading, 0.0
        if kept.boot and kept.boot == self._clock.boot() and self._at >= kept.elapsed:
            self._reading += min(self._at - kept.elapsed, self._max_gap)
        elif kept.wall:
            self._pending = min(max(self._wall_at - kept.wall, 0.0), self._max_gap)

    def now(self) -> float:
        """The reading: it never goes back."""
        return self._reading + min(max(self._clock.elapsed() - self._at, 0.0), self._max_gap)

    def last_use(self, key: str) -> float:
        """The reading at the last use that was kept; now, for what was never seen."""
        return min(self._uses.get(key, math.inf), self.now())

    @property
    def uses(self) -> Mapping[str, float]:
        """The last uses that were kept."""
        return self._uses

    def forget(self, keys: Collection[str]) -> None:
        """Keep no last use of these."""
        if keys:
            self._uses = {key: seen for key, seen in self._uses.items() if key not in keys}

    @property
    def calm(self) -> float:
        """Seconds since the start of the service, the last jump of the date, or the last time that it stood still."""
        return max(self._clock.elapsed() - self._calm_since, 0.0)

    @property
    def is_calm(self) -> bool:
        """Whether it has been so for long enough that something may be dropped by it."""
        return self.calm >= self._quiet

    def tick(self) -> None:
        """Count on, and notice when the date was set or the machine slept."""
        elapsed, wall = self._clock.elapsed(), self._clock.wall()
        passed = max(elapsed - self._at, 0.0)
        jump = (wall - self._wall_at) - passed
        self._reading += min(passed, self._max_gap)
        self._at, self._wall_at = elapsed, wall
        if abs(jump) > _JUMP_SECONDS:
            log.warning("the date was set by %+.0f s: chats do not age by it", jump)
            self._calm_since, self._pending = elapsed, 0.0
        elif passed > _PAUSE_SECONDS:
            log.warning("the service stood still for %.0f s: nothing is removed for the next hour", passed)
            self._calm_since = elapsed
        elif self._pending and self.is_calm:
            self._reading += self._pending
            self._pending = 0.0

    def save(self, uses: Mapping[str, float]) -> None:
        """Keep the reading, with the readings of last uses. Blocks."""
        self._uses = dict(uses)
        if self._path is None:
            return
        fields = {
            "version": _VERSION,
            "reading": self.now(),
            "wall": self._clock.wall(),
            "elapsed": self._clock.elapsed(),
            "boot": self._clock.boot(),
            "uses": self._uses,
        }
        durable.write(self._path, json.dumps(fields | {"sum": _sum(fields)}).encode())


def _read_all(path: Path) -> Kept:
    """What all processes of the service kept, each in a file of its own: they count the same time."""
    found = [_read(each) for each in _files(path)]
    uses: dict[str, float] = {}
    for kept in found:
        for key, reading in kept.uses.items():
            uses[key] = max(reading, uses.get(key, 0.0))
    return replace(max(found, key=lambda kept: kept.reading), uses=uses)


def kept_reading(path: Path) -> float | None:
    """The reading that a service kept last; None if there is none that can be read. Changes nothing."""
    found: list[float] = []
    for each in _files(path):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, BadRecord):
            if (reading := _number(_fields(each)["reading"])) is not None:
                found.append(reading)
    return max(found, default=None)


def _files(path: Path) -> set[Path]:
    """Those of all processes of the service."""
    return {path, *path.parent.glob(f"{path.stem.partition('-')[0]}*{path.suffix}")}


def _read(path: Path) -> Kept:
    """What is on disk. A file that cannot be read is set aside: every chat counts as used now."""
    try:
        fields = _fields(path)
        uses = {str(key): number for key, found in fields["uses"].items() if (number := _number(found)) is not None}
        reading, wall, elapsed = (_number(fields[name]) for name in ("reading", "wall", "elapsed"))
        if reading is None or wall is None or elapsed is None:
            raise ValueError("not a number")
        return Kept(reading, wall, elapsed, str(fields["boot"]), uses)
    except FileNotFoundError:
        return Kept()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadRecord) as error:
        log.error("%s cannot be read and is set aside; chats age from now on: %s", path.name, error)
        with contextlib.suppress(OSError):
            durable.move(path, path.with_name(f"{path.name}.unreadable-{time.time_ns()}"))
        return Kept()


def _fields(path: Path) -> Any:
    """What a file says. One digit that is damaged could make every chat look old: so it has a checksum, but for those
    of versions that wrote none."""
    fields: Any = record.parsed(record.read_bytes(path, _MAX_SIZE))
    wanted = fields.pop("sum", None)
    if wanted is not None and wanted != _sum(fields):
        raise ValueError("its checksum does not hold")
    return fields


def _sum(fields: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


def _number(found: Any) -> float | None:
    """A reading that a clock can have had."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
