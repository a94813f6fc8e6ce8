"""Checks the audit log as it is on disk: every hash, the chain, its end, and what it says is missing. Changes nothing.

Everything here blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cubicle.audit.files import UNCLEAN, AuditFiles, Head, read_head
from cubicle.audit.writer import LOST
from cubicle.journal import format, reading
from cubicle.journal.chat_files import HALF_LINE
from cubicle.journal.format import GAP, Line
from cubicle.journal.verify import look

_PRUNED = (AuditFiles.full, AuditFiles.old)
_MAX_LISTED = 1_000


@dataclass(slots=True)
class AuditCheck:
    """What was found."""

    records: int = 0
    first: int = 0
    last: int = 0
    hash: str = ""
    """Of the last line."""
    problems: list[str] = field(default_factory=list)
    """What was changed, or is gone although nothing in order explains it."""
    noted: list[str] = field(default_factory=list)
    """What is missing for a reason that the log tells: its age, its size, a service that was killed, a full disk."""


def check_log(folder: Path, expected: Head | None = None) -> AuditCheck:
    """Check everything. `expected`: a number and its hash that somebody wrote down elsewhere."""
    before = reading.segments(folder)
    found = _check(folder, expected)
    if found.problems and reading.segments(folder) != before:  # a service dropped old records meanwhile
        found = _check(folder, expected)
    return found


def _check(folder: Path, expected: Head | None) -> AuditCheck:
    result, known = AuditCheck(), [head for head in (read_head(folder), expected) if head is not None]
    hashes: dict[int, set[str]] = {head.number: set() for head in known}
    present: set[int] = set()

    def each(line: Line, text: bytes) -> None:
        result.hash = line.hash
        if line.number in hashes:
            hashes[line.number].add(line.hash)  # a gap has the number of the record before it
            present.update({line.number} if line.kind != GAP else ())
        if line.kind == GAP:
            _note_gap(result, line, text)
        else:
            result.records += 1

    found = look(folder, max((head.number for head in known), default=0), each)
    result.first, result.last = found.first, found.last
    result.problems[:0] = found.problems
    for noted in found.noted:
        is_explained = noted.endswith((*_PRUNED, "it is being written, or was cut off"))
        (result.noted if is_explained else result.problems).append(noted)
    result.problems += [f"{name} was damaged, and was set aside by a service" for name in found.set_aside]
    for head in known:
        if head.number in present and head.hash not in hashes[head.number]:
            result.problems.append(f"record {head.number} is not the one that was written: its hash is another one")
    del result.problems[_MAX_LISTED:]
    return result


def _note_gap(result: AuditCheck, line: Line, text: bytes) -> None:
    entry = format.entry(text)
    why = str(entry.fields.get("why", "")) if entry is not None else ""
    if why in _PRUNED:
        return  # the chain shows it as a break that is noted
    first, last = (entry.fields.get("first"), entry.fields.get("last")) if entry is not None else (0, 0)
    if why in (UNCLEAN, HALF_LINE):
        result.noted.append(f"after record {line.number}: {why}")
    elif why == LOST:
        result.noted.append(f"records {first} to {last}: {why}")
    else:
        result.problems.append(f"records {first} to {last}: {why}")
