"""What is kept of one call for those who watch: bounded, each event with the count it was told at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cubicle.chat.activity_events import CallEvent, CallFields, EndEvent, NoteEvent, StepEvent, UndoEvent, UsageEvent

MAX_OUTPUT = 20_000
"""Characters kept of one call's output: its end."""
MAX_OUTPUT_EVENTS = 8
MAX_STEPS = 200
"""Steps kept of one agent run: its latest."""


@dataclass(slots=True)
class CallEvents:
    """What is kept of one call: its start, the end of its output, its end. Each with the count it was told at."""

    begun: tuple[int, CallEvent | NoteEvent]
    outputs: list[tuple[int, int, str]] = field(default_factory=list)
    """Count, place of its first character in the whole output, text."""
    written: int = 0
    """Characters of output so far."""
    latest: int = 0
    """The count of the last of it."""
    steps: list[tuple[int, StepEvent]] = field(default_factory=list)
    stepped: int = 0
    """Steps so far."""
    used: tuple[int, UsageEvent] | None = None
    ended: tuple[int, EndEvent] | None = None
    undone: tuple[int, UndoEvent] | None = None
    """The last time that it was undone or made again."""
    size: int = 0

    @property
    def over(self) -> bool:
        return self.ended is not None or self.begun[1]["type"] == "note"

    def events(self) -> Iterator[tuple[int, CallFields]]:
        yield self.begun
        for count, place, text in self.outputs:
            yield count, {"type": "output", "id": self.begun[1]["id"], "from": place, "text": text}
        yield from self.steps
        if self.used is not None:
            yield self.used
        if self.ended is not None:
            yield self.ended
        if self.undone is not None:
            yield self.undone

    def add_output(self, count: int, text: str, skipped: int) -> None:
        """Few and larger pieces: a reader that has a part of one already knows by its place where to go on."""
        self.written += skipped + len(text)
        self.outputs.append((count, self.written - len(text), text))
        if len(self.outputs) > MAX_OUTPUT_EVENTS:
            (_, before, first), (told, place, second) = self.outputs[:2]
            whole = first + second if before + len(first) == place else second
            room = MAX_OUTPUT - sum(len(text) for _, _, text in self.outputs[2:])
            kept = whole[-room:] if room > 0 else ""
            self.outputs[:2] = [(told, place + len(second) - len(kept), kept)] if kept else []
