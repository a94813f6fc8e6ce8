"""CPU time and egress of each tenant and user in 24 hours, kept on disk: a restart of the service forgives nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cubicle import durable, record
from cubicle.egress.meter import DAY
from cubicle.egress.quota import Moment
from cubicle.quotas.limits import Subject
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

_VERSION = 1
_LOOK_SECONDS = 5.0
_MAX_RECORD = 4096
_MAX_KEPT = 20_000
_AT_ONCE = 500
"""Subjects that are looked at in one turn of the event loop."""
_MAX_NUMBER = 2.0**62


@dataclass(slots=True)
class DayUse:
    """What one used since its day began, which is 24 hours from the first use."""

    cpu_seconds: float = 0.0
    egress_bytes: int = 0
    began: float = 0.0
    """A reading of the clock of this process."""
    changed: bool = False


class DailyUsage:
    """One small file each, named by a hash. Reading and writing are done in threads."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], Moment] = Moment.now,
        others: Sequence[Path] = (),
    ) -> None:
        """`others`: where other processes of the service count."""
        self._folder = folder
        self._others = others
        self._elsewhere: OrderedDict[Subject, tuple[float, float, int]] = OrderedDict()
        """When it was looked at, CPU seconds and bytes that others counted."""
        self._clock = clock
        self._now = now
        self._kept: OrderedDict[Subject, DayUse] = OrderedDict()
        self._writing = asyncio.Lock()

    def open(self) -> None:
        """Make the folder, and remove the records of days that are over."""
        record.make_folder(self._folder)
        for path in self._folder.iterdir():
            with suppress(OSError, ValueError):
                if "." not in path.name and _load(path, self._now())[2] >= DAY:
                    durable.remove(path)

    async def of(self, subject: Subject) -> DayUse:
        """What the subject used in its day, the same object for all who ask."""
        if subject not in self._kept:
            found = await asyncio.to_thread(self._read, subject)
            self._kept.setdefault(subject, found)
            await self._bound()
        use = self._kept[subject]
        self._kept.move_to_end(subject)
        if self._clock() - use.began >= DAY:
            use.cpu_seconds, use.egress_bytes, use.began = 0.0, 0, self._clock()
        return use

    async def total(self, subject: Subject) -> DayUse:
        """The same with what other processes counted, as they wrote it down of late."""
        use = await self.of(subject)
        if not self._others:
            return use
        known = self._elsewhere.get(subject)
        if known is None or self._clock() - known[0] > _LOOK_SECONDS:
            known = (self._clock(), *await asyncio.to_thread(self._read_others, subject))
            self._elsewhere[subject] = known
            self._elsewhere.move_to_end(subject)
            while len(self._elsewhere) > _MAX_KEPT:
                self._elsewhere.popitem(last=False)
        return replace(use, cpu_seconds=use.cpu_seconds + known[1], egress_bytes=use.egress_bytes + known[2])

    async def totals(self) -> list[tuple[Subject, DayUse]]:
        """Of all that were used of late and whose day is not over. Others have their turns meanwhile: whoever has a key
        names as many users as he likes."""
        found = []
        for place, subject in enumerate(list(self._kept)):
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if subject in self._kept and self.left(self._kept[subject]):
                found.append((subject, await self.total(subject)))
        return found

    def _read_others(self, subject: Subject) -> tuple[float, int]:
        cpu, egress = 0.0, 0
        for folder in self._others:
            with suppress(OSError, ValueError):  # it is set aside by whose it is
                used, sent, elapsed = _load(folder / self._path(subject).name, self._now())
                cpu, egress = (cpu + used, egress + sent) if elapsed < DAY else (cpu, egress)
        return cpu, egress

    async def add(self, subject: Subject, *, cpu_seconds: float = 0.0, egress_bytes: int = 0) -> None:
        use = await self.of(subject)
        use.cpu_seconds += cpu_seconds
        use.egress_bytes += egress_bytes
        use.changed = True

    def left(self, use: DayUse) -> float:
        """Seconds until the day is over."""
        return max(0.0, use.began + DAY - self._clock())

    async def save(self) -> None:
        """Write those that changed. A disk that takes none is tried again the next time."""
        async with self._writing:
            for subject, use in [(s, u) for s, u in self._kept.items() if u.changed]:
                use.changed = False
                try:
                    await asyncio.to_thread(self._write, subject, use)
                except OSError as error:
                    use.changed = True
                    log.error("what tenants used of their quotas cannot be written: %s", error.strerror)
                    return

    async def _bound(self) -> None:
        if len(self._kept) > _MAX_KEPT:
            await self.save()
            for subject in [s for s, use in self._kept.items() if not use.changed][: len(self._kept) - _MAX_KEPT]:
                del self._kept[subject]

    def _path(self, subject: Subject) -> Path:
        text = "\0".join((subject.scope.value, subject.tenant, subject.name))
        return self._folder / hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def _read(self, subject: Subject) -> DayUse:
        path = self._path(subject)
        try:
            cpu, egress, elapsed = _load(path, self._now())
        except FileNotFoundError:
            return DayUse(began=self._clock())
        except (OSError, ValueError) as error:
            log.error("a record of quotas cannot be read and is set aside: %s", error, extra={"tenant": subject.tenant})
            with suppress(OSError):
                durable.move(path, path.with_name(f"{path.name}.unreadable-{int(time.time())}"))
            return DayUse(began=self._clock())
        if elapsed >= DAY:
            return DayUse(began=self._clock())
        return DayUse(cpu, egress, self._clock() - elapsed)

    def _write(self, subject: Subject, use: DayUse) -> None:
        now = self._now()
        fields: dict[str, object] = {"version": _VERSION, "cpu": round(use.cpu_seconds, 3), "egress": use.egress_bytes}
        fields |= {"elapsed": round(self._clock() - use.began, 3)}
        fields |= {"boot": now.boot, "uptime": round(now.uptime, 3), "time": round(now.wall, 3)}
        record.write_bytes(self._path(subject), json.dumps(fields).encode())


def _load(path: Path, now: Moment) -> tuple[float, int, float]:
    """CPU seconds, bytes, and seconds of the day that have passed. Raises OSError, ValueError."""
    try:
        fields: Any = record.parsed(record.read_bytes(path, _MAX_RECORD))
        cpu, egress, elapsed = float(fields["cpu"]), int(fields["egress"]), float(fields["elapsed"])
        then = Moment(str(fields["boot"]), float(fields["uptime"]), float(fields["time"]))
    except (KeyError, TypeError, BadRecord):
        raise ValueError("it is not such a record") from None
    numbers = (cpu, float(egress), elapsed, then.uptime, then.wall)
    if not all(map(math.isfinite, numbers)) or not all(0 <= number < _MAX_NUMBER for number in numbers[:3]):
        raise ValueError("a number in it cannot be")
    return cpu, egress, elapsed + now.since(then)
