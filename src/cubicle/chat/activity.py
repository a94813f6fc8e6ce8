"""What happens in a chat, as it happens: every tool call, for the people who watch. Kept in memory, and bounded."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cubicle.chat.activity_events import CallEvent, CallFields, ChangedFile, EndEvent, Ending, UndoEvent
from cubicle.core.chat import Chat

MAX_CALLS = 300
"""Calls kept of one chat; of more, those that ended first are forgotten."""
MAX_CHATS = 500
MAX_TEXT = 1_000_000
"""Characters kept of one chat."""
MAX_TEXT_OF_ALL = 64_000_000
MAX_OUTPUT = 20_000
"""Characters kept of one call's output: its end."""

_MAX_BATCH = 4_000
_MAX_RESULT = 4_000
_MAX_ARGUMENT = 50_000
_MAX_ARGUMENTS = 100
_MAX_NOTES = 20
_MAX_OUTPUT_EVENTS = 8
_WINDOW = 0.1


@dataclass(frozen=True, slots=True)
class ActivityEvent:
    """One thing that happened; the id says where a reader that was cut off goes on."""

    id: str
    fields: CallFields


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call ended, for people who saw its output already."""

    ending: Ending
    result: str = ""
    """What the tool answered, if it is not its output."""
    notes: Sequence[str] = ()
    """What the answer says beside the output: why the command ended, what the egress proxy refused."""
    exit_code: int | None = None
    signal: str = ""
    files: Sequence[ChangedFile] = ()

    def event(self, id: str, seconds: float) -> EndEvent:
        event: EndEvent = {
            "type": "end",
            "id": id,
            "seconds": seconds,
            "ending": self.ending,
            "error": self.ending != "done",
            "result": self.result[-_MAX_RESULT:],
            "notes": [note[:_MAX_RESULT] for note in self.notes[:_MAX_NOTES]],
        }
        if self.exit_code is not None:
            event["exit_code"] = self.exit_code
        if self.signal:
            event["signal"] = self.signal
        if self.files:
            event["files"] = list(self.files)
        return event


@dataclass(slots=True)
class _Record:
    """What is kept of one call: its start, the end of its output, its end. Each with the count it was told at."""

    begun: tuple[int, CallEvent]
    outputs: list[tuple[int, int, str]] = field(default_factory=list)
    """Count, place of its first character in the whole output, text."""
    written: int = 0
    """Characters of output so far."""
    latest: int = 0
    """The count of the last of it."""
    ended: tuple[int, EndEvent] | None = None
    undone: tuple[int, UndoEvent] | None = None
    """The last time that it was undone or made again."""
    size: int = 0

    def events(self) -> Iterator[tuple[int, CallFields]]:
        yield self.begun
        for count, place, text in self.outputs:
            yield count, {"type": "output", "id": self.begun[1]["id"], "from": place, "text": text}
        if self.ended is not None:
            yield self.ended
        if self.undone is not None:
            yield self.undone

    def add_output(self, count: int, text: str, skipped: int) -> None:
        """Few and larger pieces: a reader that has a part of one already knows by its place where to go on."""
        self.written += skipped + len(text)
        self.outputs.append((count, self.written - len(text), text))
        if len(self.outputs) > _MAX_OUTPUT_EVENTS:
            (_, before, first), (told, place, second) = self.outputs[:2]
            whole = first + second if before + len(first) == place else second
            room = MAX_OUTPUT - sum(len(text) for _, _, text in self.outputs[2:])
            kept = whole[-room:] if room > 0 else ""
            self.outputs[:2] = [(told, place + len(second) - len(kept), kept)] if kept else []


@dataclass(slots=True)
class _Story:
    calls: OrderedDict[str, _Record] = field(default_factory=OrderedDict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    tool: str = ""
    user: str = ""
    size: int = 0


class Activity:
    """The stories of all chats of this service."""

    def __init__(self) -> None:
        self.boot = secrets.token_hex(4)
        """The start of every id: what has another one was told by an earlier run of the service."""
        self._count = 0
        self._size = 0
        self._stories: OrderedDict[str, _Story] = OrderedDict()

    def last(self, chat: Chat) -> tuple[str, str]:
        """(the tool that was called last, who called it); empty where that is not known."""
        story = self._stories.get(chat.digest)
        return (story.tool, story.user) if story is not None else ("", "")

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        story = self._stories.pop(chat.digest, None)
        if story is not None:
            self._size -= story.size

    def _story(self, chat: Chat) -> _Story:
        """A chat's story, which is the newest now; the oldest ones make room."""
        story = self._stories.setdefault(chat.digest, _Story())
        self._stories.move_to_end(chat.digest)
        while len(self._stories) > MAX_CHATS:
            _, oldest = self._stories.popitem(last=False)
            self._size -= oldest.size
        return story

    def begin(self, chat: Chat, tool: str, arguments: Mapping[str, Any], user: str = "") -> Happening:
        """A call has started."""
        story = self._story(chat)
        self._count += 1
        id = f"{self.boot}-{self._count}"
        described = arguments.get("description")
        shown = {
            _short(name, 100): _short(value)
            for name, value in list(arguments.items())[:_MAX_ARGUMENTS]
            if name != "description"
        }
        event: CallEvent = {
            "type": "call",
            "id": id,
            "tool": tool,
            "description": _short(described) if isinstance(described, str) else None,
            "arguments": shown,
            "at": time.time(),
        }
        story.calls[id] = _Record((self._count, event))
        story.tool, story.user = tool, user
        self._settle(story, story.calls[id])
        return Happening(self, chat, id)

    def tell_output(self, chat: Chat, id: str, text: str, skipped: int) -> None:
        """A call printed this, and before it so many characters that nobody is shown."""
        story = self._story(chat)
        record = story.calls.get(id)
        if record is not None:
            self._count += 1
            record.add_output(self._count, text, skipped)
            self._settle(story, record)

    def tell_end(self, chat: Chat, id: str, seconds: float, end: CallEnd) -> None:
        """A call is over."""
        story = self._story(chat)
        record = story.calls.get(id)
        if record is not None:
            self._count += 1
            record.ended = (self._count, end.event(id, seconds))
            self._settle(story, record)

    def tell_undo(self, chat: Chat, id: str, path: str, *, undone: bool) -> None:
        """What a call wrote was taken back, or made again."""
        story = self._story(chat)
        record = story.calls.get(id)
        if record is not None:
            self._count += 1
            told: UndoEvent = {"type": "undo", "id": id, "path": path, "undone": undone, "at": time.time()}
            record.undone = (self._count, told)
            self._settle(story, record)

    def _settle(self, story: _Story, record: _Record) -> None:
        """Count what was added, forget what is too much, and wake those who follow."""
        size = sum(_size(fields) for _, fields in record.events())
        self._grow(story, size - record.size)
        record.size, record.latest = size, self._count
        while len(story.calls) > MAX_CALLS or (story.size > MAX_TEXT and len(story.calls) > 1):
            ended = (id for id, kept in story.calls.items() if kept.ended is not None and kept is not record)
            self._forget(story, next(ended, next(iter(story.calls))))
        while len(self._stories) > MAX_CHATS or (self._size > MAX_TEXT_OF_ALL and len(self._stories) > 1):
            _, oldest = self._stories.popitem(last=False)
            self._size -= oldest.size
        news, story.news = story.news, asyncio.Event()
        news.set()

    def _forget(self, story: _Story, id: str) -> None:
        self._grow(story, -story.calls.pop(id).size)

    def _grow(self, story: _Story, by: int) -> None:
        story.size += by
        self._size += by

    async def follow(self, chat: Chat, after: str = "", patience: float = 15.0) -> AsyncIterator[ActivityEvent | None]:
        """What is kept after an event, then what comes; None whenever nothing has come for a while."""
        boot, _, number = after.partition("-")
        seen = int(number) if boot == self.boot and number.isdecimal() and number.isascii() else 0
        while True:
            story = self._story(chat)
            news = story.news
            for count, fields in self._since(story, seen):
                seen = count
                yield ActivityEvent(f"{self.boot}-{count}", fields)
            try:
                async with asyncio.timeout(patience):
                    await news.wait()
            except TimeoutError:
                yield None

    @staticmethod
    def _since(story: _Story, seen: int) -> list[tuple[int, CallFields]]:
        """What is kept and was told after this count, in its order."""
        news = (record for record in story.calls.values() if record.latest > seen)
        kept = [one for record in news for one in record.events() if one[0] > seen]
        return sorted(kept, key=lambda one: one[0])


class Happening:
    """One call under way."""

    def __init__(self, activity: Activity, chat: Chat, id: str) -> None:
        self._activity = activity
        self._chat = chat
        self.id = id
        self._began = time.monotonic()
        self._output = ""
        self._skipped = 0
        self._timer: asyncio.TimerHandle | None = None

    def output(self, text: str) -> None:
        """Live output, in batches; of a flood, its end."""
        if not text:
            return
        whole = self._output + text
        self._output = whole[-_MAX_BATCH:]
        self._skipped += len(whole) - len(self._output)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._output:
            self._activity.tell_output(self._chat, self.id, self._output, self._skipped)
            self._output, self._skipped = "", 0

    def end(self, end: CallEnd) -> None:
        self._flush()
        self._activity.tell_end(self._chat, self.id, round(time.monotonic() - self._began, 3), end)


def _size(fields: Mapping[str, Any]) -> int:
    """About as many characters as the event holds."""
    arguments = fields.get("arguments", {})
    files = (text for file in fields.get("files", ()) for text in file.values())
    texts = (*fields.values(), *fields.get("notes", ()), *arguments, *arguments.values(), *files)
    return 200 + sum(len(text) for text in texts if isinstance(text, str))


def _short(value: Any, most: int = _MAX_ARGUMENT) -> str:
    """An argument in few enough characters to be shown; where it is cut, that is said."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
