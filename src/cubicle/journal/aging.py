"""Which segments of the journals are too old. Their age is counted by the service's clock: no date drops anything.

The reading at which each segment was first seen as it is stands in `ages.json`. Without that, all of them are new.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubicle import record
from cubicle.journal import anchor, reading
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

NAME = "ages.json"
_MAX_SIZE = 128 << 20


@dataclass(frozen=True, slots=True)
class OldSegments:
    """Of one chat: all up to this one, if it still has this size."""

    chat: str
    number: int
    size: int


def find_old(folder: Path, now: float, max_age: float) -> list[OldSegments]:
    """Those that have not changed for so long, at this reading of the clock; the others are noted. Blocks."""
    known = read_ages(folder)
    seen: dict[str, dict[str, list[float]]] = {}
    found = []
    for path in folder.iterdir():
        if anchor.DIGEST.fullmatch(path.name):
            chat, old = look(path, known.get(path.name), now, now - max_age)
            if chat:
                seen[path.name] = chat
            if old is not None:
                found.append(old)
    if seen != known:
        write_ages(folder, seen)
    return found


def write_ages(folder: Path, ages: Mapping[str, object]) -> None:
    record.write(folder / NAME, {"ages": ages})


def look(folder: Path, known: object, now: float, before: float) -> tuple[dict[str, list[float]], OldSegments | None]:
    """When each segment was first seen as it is, and those that were before that reading. Blocks."""
    seen: dict[str, list[float]] = {}
    old: OldSegments | None = None
    all_before = True
    try:
        for number, path in reading.segments(folder):
            state = path.lstat()
            since = _since(known, path.name, state.st_mtime, state.st_size, now)
            seen[path.name] = [state.st_mtime, state.st_size, since]
            all_before = all_before and since < before
            if all_before:
                old = OldSegments(folder.name, number, state.st_size)
    except OSError:
        return seen, None
    return seen, old


def _since(known: object, name: str, changed: float, size: int, now: float) -> float:
    """The reading at which it was first seen as it is."""
    match known.get(name) if isinstance(known, Mapping) else None:
        case [float() | int() as was_changed, int() as had, float() | int() as since] if (
            was_changed == changed and had == size and math.isfinite(since)
        ):
            return min(since, now)
    return now


def read_ages(folder: Path) -> Mapping[str, Any]:
    """What was noted at the last look. Blocks."""
    try:
        return record.read(folder / NAME, _MAX_SIZE).fields("ages").values
    except FileNotFoundError:
        return {}
    except (BadRecord, OSError) as error:
        log.warning("the ages of the journals cannot be read, and were set aside: %s", error)
        record.keep_bad(folder / NAME)
        return {}
