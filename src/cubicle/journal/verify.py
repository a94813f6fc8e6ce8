"""Checks a chat's journal as it is on disk: every hash, the chain, and what is missing. Blocks; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cubicle.journal import format, reading
from cubicle.journal.format import Chain, Line
from cubicle.record import BadRecord

_MAX_LOOKS = 3


@dataclass(slots=True)
class Verification:
    """What was found."""

    lines: int = 0
    first: int = 0
    last: int = 0
    problems: list[str] = field(default_factory=list)
    """What was changed or is missing, and no entry says so."""
    noted: list[str] = field(default_factory=list)
    """What is missing, as the journal itself says."""
    set_aside: list[str] = field(default_factory=list)
    """Damaged files that a service kept under another name."""


def verify(folder: Path, known: int = 0) -> Verification:
    """Check a journal. `known`: a service has written entries up to this number. One that drops the oldest meanwhile is
    no problem: then it is looked at again."""
    for _ in range(_MAX_LOOKS):
        before = reading.segments(folder)
        found = look(folder, known)
        if not found.problems or reading.segments(folder) == before:
            break
    return found


def look(folder: Path, known: int = 0, each: Callable[[Line, bytes], None] | None = None) -> Verification:
    """Check it once. `each` gets every good line."""
    found, chain = Verification(set_aside=reading.set_aside(folder)), Chain()
    segments = reading.segments(folder)
    for place, (_, path) in enumerate(segments):
        try:
            texts, rest = reading.read_lines(path)
        except (BadRecord, OSError) as error:
            found.problems.append(f"{path.name} cannot be read: {error}")
            continue
        for number, text in enumerate(texts, 1):
            line = format.check(text)
            if line is None:
                found.problems.append(f"{path.name}, line {number}: it was changed, or is no entry")
            else:
                chain.add(line, text)
                found.lines += 1
                if each is not None:
                    each(line, text)
        if rest and place < len(segments) - 1:
            found.problems.append(f"{path.name} ends in the middle of a line")
        elif rest:
            found.noted.append(f"{path.name} ends in the middle of a line: it is being written, or was cut off")
    for broken in chain.breaks():
        which = _range(broken.first, broken.last)
        if broken.noted:
            found.noted.append(f"{which}: {broken.noted}")
        else:
            found.problems.append(f"{which} are missing, or were changed: the chain does not hold there")
    found.first, found.last = chain.first or 0, chain.number
    if known > chain.number:
        found.problems.append(f"{_range(chain.number + 1, known)} are missing at the end")
    return found


def _range(first: int, last: int) -> str:
    return f"entries {first} to {last}" if last > first else f"entry {first}" if last == first else "entries"
