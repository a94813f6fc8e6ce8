"""Which entries of a journal are of a sandbox that was removed: they are shown again when it is brought back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cubicle.journal.format import Entry

Part = tuple[int, int]
"""The numbers of the first and the last entry."""


def removed_parts(entries: Iterable[Entry]) -> Sequence[Part]:
    """What is not shown, in the order of the removals."""
    removed: dict[str, list[Part]] = {}
    shown: list[Part] = []
    first = last = 0
    for entry in entries:
        first, last = first or entry.number, entry.number
        if entry.kind != "lifecycle":
            continue
        sandbox = str(entry.fields.get("sandbox") or "")
        if entry.fields.get("what") == "removed":
            removed.setdefault(sandbox, []).extend([*shown, (first, last)])
            shown, first = [], 0
        elif sandbox:
            shown += removed.pop(sandbox, [])  # it is back
    return [part for parts in removed.values() for part in parts]


def without(entries: Iterable[Entry], parts: Sequence[Part]) -> Iterable[Entry]:
    """The others."""
    return (entry for entry in entries if not any(first <= entry.number <= last for first, last in parts))
