"""What the journal says of a chat, as the events that its activity is shown by."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from cubicle.chat.activity_events import (
    CallEvent,
    CallFields,
    ChangedFile,
    EndEvent,
    Ending,
    NoteEvent,
    StepEvent,
    StepKind,
    UndoEvent,
    UsageEvent,
)
from cubicle.chat.agent_steps import AgentStep, AgentUsage
from cubicle.journal.format import Entry

_ENDINGS = frozenset(get_args(Ending))
_STEP_KINDS = frozenset(get_args(StepKind))
_MAX_TEXT = 500
INTERRUPTED = "The service ended while this ran. Its sandbox and its files are as they were left."


@dataclass(slots=True)
class PastCall:
    """A call as the journal has it."""

    begun: CallEvent
    user: str
    output: list[tuple[int, str]] = field(default_factory=list)
    """Place of its first character in the whole output, text."""
    steps: list[StepEvent] = field(default_factory=list)
    used: UsageEvent | None = None
    ended: EndEvent | None = None
    undone: UndoEvent | None = None
    seen: float = 0.0
    """When something was last heard of it."""

    def events(self, running: Container[str]) -> list[CallFields]:
        """All of it, in the order in which it is sent. `running`: the ids of calls that have not ended."""
        id = self.begun["id"]
        ended = self.ended or (None if id in running else interrupted(self))
        output: list[CallFields] = [
            {"type": "output", "id": id, "from": place, "text": text} for place, text in self.output
        ]
        rest = (self.used, ended, self.undone)
        return [self.begun, *output, *self.steps, *(event for event in rest if event is not None)]


@dataclass(slots=True)
class History:
    """The calls and notes of a chat, in their order."""

    calls: dict[str, PastCall] = field(default_factory=dict)
    order: list[PastCall | NoteEvent] = field(default_factory=list)


def read_history(entries: Iterable[Entry]) -> History:
    """What is to be shown. A chat that was removed begins anew, unless the same sandbox was brought back."""
    history = History()
    removed: dict[str, History] = {}
    for entry in entries:
        fields = entry.fields
        match entry.kind:
            case "call":
                _call(history, entry)
            case "output":
                call = history.calls.get(_text(fields, "call"))
                place, text = fields.get("from"), fields.get("text")
                if call is not None and isinstance(place, int) and isinstance(text, str):
                    call.output.append((place, text))
                    call.seen = entry.at
            case "end":
                call = history.calls.get(_text(fields, "call"))
                if call is not None:
                    _end(call, fields)
            case "agent":
                call = history.calls.get(_text(fields, "call"))
                if call is not None:
                    _agent(call, entry)
            case "undo":
                call = history.calls.get(_text(fields, "call"))
                if call is not None:
                    call.undone = _undo(entry)
            case "lifecycle" if fields.get("what") == "removed":
                removed[_text(fields, "sandbox")] = history
                history = History()
            case _:
                if entry.kind == "lifecycle" and (before := removed.pop(_text(fields, "sandbox"), None)) is not None:
                    history = History({**before.calls, **history.calls}, [*before.order, *history.order])
                note = note_of(entry)
                if note is not None:
                    history.order.append(note)
    return history


def _call(history: History, entry: Entry) -> None:
    fields = entry.fields
    id, given = _text(fields, "call"), fields.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    if not id or id in history.calls:
        return
    event: CallEvent = {
        "type": "call",
        "id": id,
        "tool": _text(fields, "tool"),
        "description": _text(fields, "description") or None,
        "arguments": {str(name): str(value) for name, value in arguments.items()},
        "at": entry.at,
    }
    history.calls[id] = call = PastCall(event, _text(fields, "user"), seen=entry.at)
    history.order.append(call)


def _end(call: PastCall, fields: Mapping[str, Any]) -> None:
    ending, seconds, notes = _text(fields, "ending"), fields.get("seconds"), fields.get("notes")
    event: EndEvent = {
        "type": "end",
        "id": call.begun["id"],
        "seconds": float(seconds) if isinstance(seconds, int | float) else 0.0,
        "ending": cast(Ending, ending) if ending in _ENDINGS else "failed",
        "error": fields.get("error") is not False,
        "result": _text(fields, "result"),
        "notes": [str(note) for note in notes] if isinstance(notes, list) else [],
    }
    if isinstance(code := fields.get("exit_code"), int):
        event["exit_code"] = code
    if signal := _text(fields, "signal"):
        event["signal"] = signal
    if isinstance(files := fields.get("files"), list):
        event["files"] = [cast(ChangedFile, one) for one in files if isinstance(one, dict) and _is_changed_file(one)]
    if isinstance(pictures := fields.get("pictures"), list):
        event["pictures"] = [one for one in pictures if isinstance(one, str)]
    call.ended = event
    head, tail, cut = _text(fields, "head"), _text(fields, "tail"), fields.get("cut")
    left_out = cut if isinstance(cut, int) else 0
    call.output = [(0, head + tail)] if not left_out else [(0, head), (len(head) + left_out, tail)]
    call.output = [(place, text) for place, text in call.output if text]


def _agent(call: PastCall, entry: Entry) -> None:
    """A step of the coding agent that the call ran, or, at the end, what it used."""
    id, step, usage = call.begun["id"], entry.fields.get("step"), entry.fields.get("usage")
    call.seen = entry.at
    if isinstance(step, dict) and (kind := _text(step, "kind")) in _STEP_KINDS:
        texts = {name: _text(step, name) for name in ("text", "tool", "key", "parent")}
        told = AgentStep(cast(StepKind, kind), **texts, error=step.get("error") is True)
        call.steps.append(told.event(id, len(call.steps), entry.at))
    if isinstance(usage, dict):
        counts = {name: _count(usage, name) for name in ("turns", "input_tokens", "output_tokens")}
        dollars = usage.get("dollars")
        call.used = AgentUsage(
            _text(usage, "session"),
            _text(usage, "model"),
            **counts,
            dollars=float(dollars) if isinstance(dollars, int | float) else None,
        ).event(id)


def _is_changed_file(fields: Mapping[str, Any]) -> bool:
    return fields.keys() >= ChangedFile.__required_keys__ and isinstance(fields["path"], str)


def _undo(entry: Entry) -> UndoEvent:
    fields = entry.fields
    undone = fields.get("undone") is not False
    path, id = _text(fields, "path"), _text(fields, "call")
    return {"type": "undo", "id": id, "path": path, "undone": undone, "at": entry.at}


def interrupted(call: PastCall) -> EndEvent:
    """The end of a call that was running when the service ended, as far as it is known."""
    return {
        "type": "end",
        "id": call.begun["id"],
        "seconds": round(max(0.0, call.seen - call.begun["at"]), 3),
        "ending": "interrupted",
        "error": True,
        "result": "",
        "notes": [INTERRUPTED],
    }


def note_of(entry: Entry) -> NoteEvent | None:
    """What is shown of an entry that is no call's; None if it is not shown."""
    fields = entry.fields
    reason = _text(fields, "reason")
    match entry.kind:
        case "upload":
            text = f"Uploaded {_text(fields, 'path')} ({fields.get('size', 0)} bytes)"
        case "edit":
            to = _text(fields, "to")
            text = f"A person {_text(fields, 'what')} {_text(fields, 'path')}{' to ' + to if to else ''}"
        case "takeover":
            text = f"{_text(fields, 'user') or 'Somebody'} opened the {_text(fields, 'what')}"
        case "handback":
            text = f"{_text(fields, 'user') or 'Somebody'} gave the {_text(fields, 'what')} back"
        case "egress":
            text = f"Not let through: {_text(fields, 'host')}:{fields.get('port', '')}. {reason}"
        case "lifecycle":
            text = f"Sandbox {_text(fields, 'what')}. {reason}"
        case "gap":
            text = f"The journal is incomplete here. {_text(fields, 'why')}"
        case _:
            return None
    return {
        "type": "note",
        "id": f"note-{entry.kind}-{entry.number}",
        "kind": entry.kind,
        "text": text.strip()[:_MAX_TEXT],
        "at": entry.at,
    }


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
