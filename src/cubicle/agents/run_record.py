"""What the journal is told of one agent run: its beginning, its first events, its end."""

from __future__ import annotations

from dataclasses import asdict

from cubicle.chat.agent_steps import AgentStep, AgentUsage
from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal

MAX_EVENTS = 200
"""Of one run; further ones are counted. The report of the run has what came of it."""
_MAX_TEXT = 500


class RunRecord:
    """One run that is followed for a call."""

    def __init__(self, journal: Journal, chat: Chat, run: str, call: str) -> None:
        self._journal = journal
        self._chat = chat
        self._run = run
        self._call = call
        self._count = 0
        self._usage = AgentUsage()
        self._record("started", "")

    def watch(self, told: AgentStep | AgentUsage) -> None:
        """A step, as people are shown it, or what the run has used."""
        if isinstance(told, AgentUsage):
            self._usage = told
            return
        self._count += 1
        if self._count <= MAX_EVENTS:
            step = {"kind": told.kind, "tool": told.tool, "key": told.key, "parent": told.parent, "error": told.error}
            shown = {name: value for name, value in step.items() if value}
            self._record("event", f"{told.line}\n", step=shown | {"text": told.text[:_MAX_TEXT]})

    def end(self) -> None:
        """Nobody follows it any more: it ended, or the service does."""
        more = self._count - MAX_EVENTS
        self._record("ended", f"{more:,} more events" if more > 0 else "", usage=asdict(self._usage))

    def _record(self, event: str, text: str, **more: object) -> None:
        fields = {"run": self._run, "call": self._call, "event": event, "text": text[:_MAX_TEXT], **more}
        self._journal.record(self._chat, "agent", fields)
