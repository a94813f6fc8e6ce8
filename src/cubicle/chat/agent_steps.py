"""What a coding agent does while a call waits for it: steps and figures, for the people who watch."""

from __future__ import annotations

from dataclasses import dataclass

from cubicle.chat.activity_events import StepEvent, StepKind, UsageEvent

MAX_STEP_TEXT = 2_000
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One step, as the agent itself reports it. `key` pairs a result with its tool; `parent` is the key of the tool
    that the step belongs to, where an agent started another one."""

    kind: StepKind
    text: str
    tool: str = ""
    key: str = ""
    parent: str = ""
    error: bool = False

    @property
    def line(self) -> str:
        """The step as a line of text, for those who are given nothing else."""
        if self.kind == "tool":
            return f"→ {self.tool}: {self.text}" if self.text else f"→ {self.tool}"
        if self.kind == "result":
            return f"  {'failed: ' if self.error else ''}{self.text}"
        return self.text

    def event(self, id: str, number: int, at: float) -> StepEvent:
        return {
            "type": "step",
            "id": id,
            "number": number,
            "kind": self.kind,
            "tool": self.tool[:_MAX_NAME],
            "text": self.text[:MAX_STEP_TEXT],
            "key": self.key[:_MAX_NAME],
            "parent": self.parent[:_MAX_NAME],
            "error": self.error,
            "at": at,
        }


@dataclass(frozen=True, slots=True)
class AgentUsage:
    """What a run has used so far, as the agent itself reports it."""

    session: str = ""
    model: str = ""
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None

    def event(self, id: str) -> UsageEvent:
        return {
            "type": "usage",
            "id": id,
            "session": self.session,
            "model": self.model[:_MAX_NAME],
            "turns": self.turns,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "dollars": self.dollars,
        }
