"""What the journal is told of one agent run: its beginning, its first events, its end."""

from __future__ import annotations

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal

MAX_EVENTS = 200
"""Of one run; further ones are counted. The report of the run has what came of it."""
_MAX_TEXT = 500


class RunRecord:
    """One run that is followed."""

    def __init__(self, journal: Journal, chat: Chat, run: str) -> None:
        self._journal = journal
        self._chat = chat
        self._run = run
        self._count = 0
        self._record("started", "")

    def report(self, text: str) -> None:
        """An event, as people are shown it."""
        self._count += 1
        if self._count <= MAX_EVENTS:
            self._record("event", text)

    def end(self) -> None:
        """Nobody follows it any more: it ended, or the service does."""
        more = self._count - MAX_EVENTS
        self._record("ended", f"{more:,} more events" if more > 0 else "")

    def _record(self, event: str, text: str) -> None:
        self._journal.record(self._chat, "agent", {"run": self._run, "event": event, "text": text[:_MAX_TEXT]})
