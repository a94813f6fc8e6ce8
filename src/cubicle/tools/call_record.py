"""What the journal is told of one call: its beginning, some of its output while it runs long, its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cubicle.chat.activity_events import EndEvent
from cubicle.core.arguments_hash import arguments_hash, as_text
from cubicle.journal import format
from cubicle.journal.journal import Journal
from cubicle.tools.base import Answer, Call
from cubicle.tools.kept_answer import keep_blocks
from cubicle.tools.output import Cap

_MAX_ARGUMENT = 16_000
_MAX_ARGUMENTS = 64_000
"""Characters of all arguments together."""
_MAX_ARGUMENTS_SIZE = 128 * 1024
_MAX_OUTPUT_SIZE = 128 * 1024
"""Bytes that they may take in the line; a character takes up to twelve."""
_SHORT_END = 5_000
"""Characters of either end of an output that would take more; the answer is then kept beside the line."""
_MAX_NAMES = 50
_FIRST_OUTPUT = 1.0
"""Seconds after which the output of a call that still runs is written down for the first time; then after twice as
many, and so on up to the longest pause."""
_LONGEST_PAUSE = 60.0
_MAX_PIECE = 2_000
_NAMES = ("tool", "identity", "arguments_hash", "command", "ttl")
"""Fields by which a call is found when it comes again: its end has them too, as it may outlive its beginning."""


class CallRecord:
    """One call under way. The entries of calls that run at the same time are told apart by the call's id."""

    def __init__(self, journal: Journal, call: Call) -> None:
        self._journal = journal
        self._call = call
        self._chat = call.caller.chat
        self._hold = call.ttl is None  # a task is on disk before its client is given its id
        self._named: dict[str, object] = {}
        self._cap = Cap()
        self._piece = ""
        self._place = 0
        self._pause = _FIRST_OUTPUT
        self._next = 0.0

    def begin(self, tool: str, arguments: Mapping[str, Any], user: str) -> None:
        if not self._journal.keeps:
            return
        described = arguments.get("description")
        self._next = time.monotonic() + self._pause
        call = self._call
        fields: dict[str, object] = {
            "call": call.id,
            "tool": tool,
            "identity": call.identity[:_MAX_PIECE],
            "arguments": shown_arguments(arguments),
            "arguments_hash": call.arguments_hash or arguments_hash(tool, arguments),
            "description": described[:_MAX_PIECE] if isinstance(described, str) else "",
            "user": user[:200],
            "command": call.command,
        }
        if call.begun is not None:
            fields["begun"] = call.begun
        if call.ttl is not None:
            fields["ttl"] = call.ttl
        if call.identity:
            self._named = {name: fields[name] for name in _NAMES if name in fields}
        self._journal.record(self._chat, "call", fields, hold=self._hold)

    def output(self, text: str) -> None:
        """What the call printed; of a long one, its newest part is written down now and then."""
        self._cap.feed(text)
        if not self._journal.keeps:
            return
        self._piece = (self._piece + text)[-_MAX_PIECE:]
        if text and time.monotonic() >= self._next:
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            self._next = time.monotonic() + self._pause
            place = max(self._place, self._cap.characters - len(self._piece))
            piece = self._piece[place - self._cap.characters :]
            self._place = self._cap.characters
            fields = {"call": self._call.id, "from": place, "text": piece}
            self._journal.record(self._chat, "output", fields, hold=self._hold)

    def end(self, event: EndEvent, answer: Answer | None, *, final: bool = True, begun: bool = True) -> None:
        """`final`: the tool came to its end. If not, the sandbox may know more of it, unless it was not `begun`."""
        if not self._journal.keeps:
            return
        fields: dict[str, Any] = {"call": self._call.id, **self._named, **event}
        del fields["type"], fields["id"]
        if not final:
            fields["final"] = False
        if not begun:
            fields["begun"] = False
        whole = not self._cap.characters or self._add_output(fields)
        if answer is not None:
            printed = self._cap.text() if answer.notes is not None and whole else ""
            fields["answer"] = keep_blocks(self._journal, self._chat, answer, printed)
        self._journal.record(self._chat, "end", fields, hold=self._hold)

    def _add_output(self, fields: dict[str, Any]) -> bool:
        """Both ends of what the call printed; whether they are as long as the client got them."""
        head, tail = ends = self._cap.ends()
        whole = sum(map(format.most_size, ends)) <= _MAX_OUTPUT_SIZE or sum(map(format.size, ends)) <= _MAX_OUTPUT_SIZE
        if not whole:
            head, tail = (head + tail)[:_SHORT_END], (head + tail)[-_SHORT_END:]
        fields |= {"head": head, "tail": tail, "cut": self._cap.characters - len(head) - len(tail)}
        return whole


def shown_arguments(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments in few enough characters; where one is cut, that is said."""
    shown, left, room = {}, _MAX_ARGUMENTS, _MAX_ARGUMENTS_SIZE
    for name in list(arguments)[:_MAX_NAMES]:
        if name == "description":
            continue
        value = arguments[name]
        if value is None:
            continue
        text = as_text(value, _MAX_ARGUMENTS)
        most = min(_MAX_ARGUMENT, left)
        if (size := format.most_size(text[:most])) > room and (size := format.size(text[:most])) > room:
            most = max(0, room) // 12
            size = format.size(text[:most])
        left -= min(len(text), most)
        room -= size
        shown[name[:100]] = text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
    return shown
