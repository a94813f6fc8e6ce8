"""The entries of a journal as the page of the replay lists them: few fields, short texts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired

from typing_extensions import TypedDict

from cubicle.journal.format import Entry

_MAX_LINE = 300
_MAX_OUTPUT = 4000
_LEFT_OUT = frozenset({"output", "detached"})
"""Of these the page shows nothing: what a call printed stands at its end."""
_SHOWN_ARGUMENTS = ("command", "path", "file_path", "task", "prompt", "url")

_EDITS = {"saved": "Saved", "made": "Made", "renamed": "Renamed", "deleted": "Deleted"}
"""What a person did with a file."""


class Step(TypedDict):
    """One entry. `call` is the id that the beginning and the end of a call share."""

    n: int
    at: float
    kind: str
    call: NotRequired[str]
    tool: NotRequired[str]
    title: NotRequired[str]
    """What a person reads: what the call is for, or what happened."""
    text: NotRequired[str]
    """What was asked for, at the beginning of a call; what it printed or answered, at its end."""
    error: NotRequired[bool]
    exit_code: NotRequired[int | None]
    seconds: NotRequired[float]
    user: NotRequired[str]


def step_of(entry: Entry) -> Step | None:
    """None for what is not shown."""
    if entry.kind in _LEFT_OUT:
        return None
    fields = entry.fields
    step: Step = {"n": entry.number, "at": entry.at, "kind": entry.kind[:40]}
    match entry.kind:
        case "call":
            asked = _asked(fields)
            step |= {
                "call": _text(fields.get("call")),
                "tool": _text(fields.get("tool")),
                "title": _text(fields.get("description")) or _first_line(asked),
                "text": asked[:_MAX_OUTPUT],
                "user": _text(fields.get("user")),
            }
        case "end":
            code, took = fields.get("exit_code"), fields.get("seconds")
            step |= {
                "call": _text(fields.get("call")),
                "error": fields.get("error") is not False,
                "exit_code": code if isinstance(code, int) and not isinstance(code, bool) else None,
                "seconds": float(took) if isinstance(took, int | float) else 0.0,
                "text": _printed(fields),
            }
        case "undo":
            done = "Took back" if fields.get("undone") is not False else "Made again"
            step |= {"title": f"{done} the change of {_text(fields.get('path'))}"}
        case _:
            step |= {"title": _told(entry.kind, fields), "user": _text(fields.get("user"))}
    return step


def _asked(fields: Mapping[str, object]) -> str:
    arguments = fields.get("arguments")
    if not isinstance(arguments, Mapping):
        return ""
    for name in _SHOWN_ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def _printed(fields: Mapping[str, object]) -> str:
    """The end of what a call printed, else what it answered."""
    head, tail = fields.get("head"), fields.get("tail")
    printed = (head if isinstance(head, str) else "") + (tail if isinstance(tail, str) else "")
    if not printed:
        result = fields.get("result")
        printed = result if isinstance(result, str) else ""
    cut = fields.get("cut")
    is_cut = len(printed) > _MAX_OUTPUT or (isinstance(cut, int) and cut > 0)
    return f"…{printed[-_MAX_OUTPUT:]}" if is_cut else printed


def _told(kind: str, fields: Mapping[str, object]) -> str:
    reason = _text(fields.get("reason"))
    match kind:
        case "upload":
            return f"Uploaded {_text(fields.get('path'))}"
        case "takeover":
            return f"{_text(fields.get('user')) or 'Somebody'} opened the {_text(fields.get('what'))}"
        case "handback":
            return f"{_text(fields.get('user')) or 'Somebody'} gave back the {_text(fields.get('what'))}"
        case "edit":
            done, to = _EDITS.get(_text(fields.get("what")), "Changed"), _text(fields.get("to"))
            return f"{done} {_text(fields.get('path'))}" + (f" to {to}" if to else "")
        case "egress":
            return f"Not let through: {_text(fields.get('host'))}. {reason}".strip()
        case "lifecycle":
            return f"Sandbox {_text(fields.get('what'))}. {reason}".strip()
        case "agent":
            return f"Coding agent: {_text(fields.get('event'))} {_text(fields.get('text'))}".strip()
        case "gap":
            return f"The journal is incomplete here. {_text(fields.get('why'))}".strip()
        case _:
            return kind[:40]


def _text(value: object) -> str:
    return value[:_MAX_LINE] if isinstance(value, str) else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_MAX_LINE]
