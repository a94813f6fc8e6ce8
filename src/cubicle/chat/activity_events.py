"""The events of a chat's activity stream, as they are sent. The page's types are generated from these."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Ending = Literal[
    "done", "failed", "timed_out", "out_of_memory", "killed", "cancelled", "disconnected", "sandbox_gone", "interrupted"
]


class CallEvent(TypedDict):
    """A tool call began."""

    type: Literal["call"]
    id: str
    tool: str
    description: str | None
    arguments: dict[str, str]
    at: float


# `from` is a keyword of Python: hence this form.
OutputEvent = TypedDict("OutputEvent", {"type": Literal["output"], "id": str, "from": int, "text": str})
"""A call printed this; `from` is the place of its first character in the whole output, in characters."""


class ChangedFile(TypedDict):
    """A file that a tool wrote: hash and size before and after. Where both are short texts, the lines that differ, with
    some around them; `line` is the number of the first. `kept`: the change can be undone; if not, `reason` says why."""

    path: str
    before: str | None
    after: str | None
    size_before: int
    size_after: int
    kept: bool
    reason: str
    line: int
    text_before: str | None
    text_after: str | None
    cut_before: int
    cut_after: int


class EndEvent(TypedDict):
    """A call is over. `exit_code` and `signal` come where the command had one. `pictures` are the hashes of those that
    the answer has; the service gives them by that name."""

    type: Literal["end"]
    id: str
    seconds: float
    ending: Ending
    error: bool
    exit_code: NotRequired[int]
    signal: NotRequired[str]
    result: str
    notes: list[str]
    files: NotRequired[list[ChangedFile]]
    pictures: NotRequired[list[str]]


StepKind = Literal["turn", "text", "tool", "result", "note"]


class StepEvent(TypedDict):
    """One step of the coding agent that a call runs. `key` pairs a result with its tool; `parent` is the key of the
    tool that the step belongs to, where an agent started another one."""

    type: Literal["step"]
    id: str
    number: int
    kind: StepKind
    tool: str
    text: str
    key: str
    parent: str
    error: bool
    at: float


class UsageEvent(TypedDict):
    """What the coding agent of a call has used so far, as it reports it."""

    type: Literal["usage"]
    id: str
    session: str
    model: str
    turns: int
    input_tokens: int
    output_tokens: int
    dollars: float | None


class UndoEvent(TypedDict):
    """What a call wrote was taken back, or, with `undone` false, made again."""

    type: Literal["undo"]
    id: str
    path: str
    undone: bool
    at: float


class NoteEvent(TypedDict):
    """Something else that happened in the chat: an upload, a take-over, an egress denial, a start or stop."""

    type: Literal["note"]
    id: str
    kind: str
    text: str
    at: float


class ServiceEvent(TypedDict):
    """The service that sends the stream. Calls that ran under another one and go on here are told again."""

    type: Literal["service"]
    id: str


CallFields = CallEvent | OutputEvent | StepEvent | UsageEvent | EndEvent | UndoEvent | NoteEvent
ActivityEvent = CallFields | ServiceEvent
