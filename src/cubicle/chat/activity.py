"""What happens in a chat, as it happens: every tool call, for the people who watch. Bounded in memory; what a service
before this one saw, and what was forgotten here, comes from the journal."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cubicle.chat.activity_events import (
    CallEvent,
    CallFields,
    ChangedFile,
    EndEvent,
    Ending,
    NoteEvent,
    UndoEvent,
)
from cubicle.chat.activity_history import PastCall, interrupted, note_of, read_history
from cubicle.chat.agent_steps import AgentStep, AgentUsage
from cubicle.chat.call_events import MAX_OUTPUT_EVENTS, MAX_STEPS, CallEvents
from cubicle.chat.news import News
from cubicle.core.arguments_hash import as_text
from cubicle.core.chat import Chat
from cubicle.journal.format import Entry
from cubicle.journal.journal import Journal, no_journal
from cubicle.tasks import start_task

MAX_CALLS = 300
"""Calls kept of one chat; of more, those that ended first are forgotten."""
MAX_CHATS = 500
MAX_TEXT = 1_000_000
"""Characters kept of one chat."""
MAX_TEXT_OF_ALL = 64_000_000

_MAX_BATCH = 4_000
_MAX_RESULT = 4_000
_MAX_ARGUMENT = 50_000
_MAX_ARGUMENTS = 100
_MAX_NOTES = 20
_WINDOW = 0.1
_MAX_NOTES_KEPT = 100
"""Notes kept of one chat; of more, the oldest are forgotten."""
_PAST = (5 + MAX_OUTPUT_EVENTS + MAX_STEPS) * MAX_CALLS
"""Counts that each story has for what the journal says: they are of that story alone."""
_BEFORE_ALL = -1
_NUMBER = re.compile(r"[0-9]{1,18}")


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
    pictures: Sequence[str] = ()
    """The hashes of those that the answer has and the journal keeps."""

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
        if self.pictures:
            event["pictures"] = list(self.pictures)
        return event


@dataclass(frozen=True, slots=True)
class NewestCall:
    """The call of a chat that began last."""

    begun: CallEvent
    output: str
    """The end of it, as far as it is kept."""
    ended: EndEvent | None


@dataclass(slots=True)
class _Story:
    start: int
    """The count at which it was made. Of the story before it, nothing was told after `before`."""
    before: int
    calls: OrderedDict[str, CallEvents] = field(default_factory=OrderedDict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    tool: str = ""
    user: str = ""
    size: int = 0
    past: asyncio.Task[None] | None = None
    """Reads what the journal has."""


class Activity:
    """The stories of all chats of this service."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.boot = secrets.token_hex(4)
        """The start of the id of every event: what has another one was told by an earlier run of the service."""
        self._journal = journal or no_journal()
        self._journal.watch(self._on_entry)
        self._running: set[str] = set()
        """The ids of calls that have not ended."""
        self._count = 0
        self._size = 0
        self._stories: OrderedDict[str, _Story] = OrderedDict()
        self._left: OrderedDict[str, int] = OrderedDict()
        """Of stories that made room while nothing was under way in them, the count of the last that was told."""
        self.news = News()
        """Told of each thing that happens, in any chat."""

    def last(self, chat: Chat) -> tuple[str, str]:
        """(the tool that was called last, who called it); empty where that is not known."""
        return self.last_of(chat.digest)

    def last_of(self, digest: str) -> tuple[str, str]:
        """The same, of the chat that has this digest."""
        story = self._stories.get(digest)
        return (story.tool, story.user) if story is not None else ("", "")

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        story = self._stories.pop(chat.digest, None)
        self._left.pop(chat.digest, None)
        if story is not None:
            self._size -= story.size

    def _story(self, chat: Chat) -> _Story:
        """A chat's story, which is the newest now; the oldest ones make room."""
        story = self._stories.get(chat.digest)
        if story is None:
            story = _Story(self._count, self._left.pop(chat.digest, self._count))
            self._stories[chat.digest] = story
            self._count += _PAST
        self._stories.move_to_end(chat.digest)
        while len(self._stories) > MAX_CHATS:
            self._make_room()
        return story

    def _make_room(self) -> None:
        """The oldest story goes. Who follows it is told all of it again, unless that one has all of it."""
        digest, oldest = self._stories.popitem(last=False)
        self._size -= oldest.size
        calls = oldest.calls.values()
        if all(record.over for record in calls):
            self._left[digest] = max((record.latest for record in calls), default=oldest.before)
        while len(self._left) > 20 * MAX_CHATS:
            self._left.popitem(last=False)

    def begin(self, chat: Chat, tool: str, arguments: Mapping[str, Any], user: str = "", *, id: str = "") -> Happening:
        """A call has started, or one that was interrupted goes on under the same id."""
        story = self._story(chat)
        self._count += 1
        id = id or secrets.token_hex(8)
        self._running.add(id)
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
        known = story.calls.get(id)
        if known is None:
            known = story.calls[id] = CallEvents((self._count, event))
        else:
            known.begun, known.ended = (self._count, event), None
        story.tool, story.user = tool, user
        self._settle(story, known)
        return Happening(self, chat, id)

    def tell_output(self, chat: Chat, id: str, text: str, skipped: int) -> None:
        """A call printed this, and before it so many characters that nobody is shown."""
        story = self._story(chat)
        record = story.calls.get(id)
        if record is not None:
            self._count += 1
            record.add_output(self._count, text, skipped)
            self._settle(story, record)

    def tell_agent(self, chat: Chat, id: str, told: AgentStep | AgentUsage) -> None:
        """The coding agent of a call did this, or used so much."""
        story = self._story(chat)
        record = story.calls.get(id)
        if record is None:
            return
        self._count += 1
        if isinstance(told, AgentUsage):
            record.used = (self._count, told.event(id))
        else:
            record.steps.append((self._count, told.event(id, record.stepped, time.time())))
            record.stepped += 1
            del record.steps[:-MAX_STEPS]
        self._settle(story, record)

    def tell_end(self, chat: Chat, id: str, event: EndEvent) -> None:
        """A call is over."""
        self._running.discard(id)
        story = self._story(chat)
        record = story.calls.get(id)
        if record is not None:
            self._count += 1
            size = record.size + _size(event) if record.ended is None else None
            record.ended = (self._count, event)
            self._settle(story, record, size=size)

    def tell_undo(self, chat: Chat, id: str, path: str, *, undone: bool) -> None:
        """What a call wrote was taken back, or made again."""
        story = self._story(chat)
        record = story.calls.get(id)
        if record is not None:
            self._count += 1
            told: UndoEvent = {"type": "undo", "id": id, "path": path, "undone": undone, "at": time.time()}
            record.undone = (self._count, told)
            self._settle(story, record)

    def _settle(self, story: _Story, record: CallEvents, count: int = 0, *, size: int | None = None) -> None:
        """Count what was added, forget what is too much, and wake those who follow. `count`: of what was long ago.
        `size`: that of the record now, where it is known."""
        size = sum(_size(fields) for _, fields in record.events()) if size is None else size
        self._grow(story, size - record.size)
        record.size, record.latest = size, count or self._count
        while len(story.calls) > MAX_CALLS or (story.size > MAX_TEXT and len(story.calls) > 1):
            ended = (id for id, kept in story.calls.items() if kept.over and kept is not record)
            self._forget(story, next(ended, next(iter(story.calls))))
        while len(self._stories) > MAX_CHATS or (self._size > MAX_TEXT_OF_ALL and len(self._stories) > 1):
            self._make_room()
        news, story.news = story.news, asyncio.Event()
        news.set()
        self.news.tell()

    def _forget(self, story: _Story, id: str) -> None:
        self._grow(story, -story.calls.pop(id).size)

    def _grow(self, story: _Story, by: int) -> None:
        story.size += by
        self._size += by

    # ---- the journal

    def _on_entry(self, chat: Chat, entry: Entry) -> None:
        """Something was recorded: what is no call's own is told here, where somebody may watch."""
        if (note := note_of(entry)) is None:
            return
        story = self._stories.get(chat.digest)
        if story is None:
            self._left.pop(chat.digest, None)
            return
        self._count += 1
        self._settle(story, self._add_note(story, self._count, note))

    def _add_note(self, story: _Story, count: int, note: NoteEvent) -> CallEvents:
        record = story.calls[note["id"]] = CallEvents((count, note))
        for id in [id for id in story.calls if id.startswith("note-")][:-_MAX_NOTES_KEPT]:
            self._forget(story, id)
        return record

    async def _load(self, chat: Chat, story: _Story) -> None:
        """Put what the journal has before what is known here."""
        history = await self._journal.scan(chat, read_history)
        unknown = [past for past in history.order if _id(past) not in story.calls]
        newest = unknown[max(0, len(unknown) + len(story.calls) - MAX_CALLS) :]
        known, story.calls = story.calls, OrderedDict()
        count = story.start
        for past in newest:
            count += 1
            if isinstance(past, PastCall):
                count = self._add_past(story, count, past)
            else:
                self._settle(story, self._add_note(story, count, past), count)
        if not story.tool and history.calls:
            last = next(reversed(history.calls.values()))
            story.tool, story.user = last.begun["tool"], last.user
        story.calls.update(known)

    def _add_past(self, story: _Story, count: int, past: PastCall) -> int:
        record = story.calls[past.begun["id"]] = CallEvents((count, past.begun))
        for place, text in past.output[-MAX_OUTPUT_EVENTS:]:
            count += 1
            record.outputs.append((count, place, text))
            record.written = place + len(text)
        for step in past.steps[-MAX_STEPS:]:
            count += 1
            record.steps.append((count, step))
            record.stepped = step["number"] + 1
        if past.used is not None:
            count += 1
            record.used = (count, past.used)
        ended = past.ended
        if ended is None and past.begun["id"] not in self._running:
            ended = interrupted(past)
        if ended is not None:
            count += 1
            record.ended = (count, ended)
        if past.undone is not None:
            count += 1
            record.undone = (count, past.undone)
        self._settle(story, record, count)
        return count

    async def earlier(self, chat: Chat, before: str) -> tuple[list[CallFields], bool]:
        """What the journal has before a call or note: of the latest so many events, and whether there is still more."""
        history = await self._journal.scan(chat, read_history)
        ids = [_id(past) for past in history.order]
        end = ids.index(before) if before in ids else 0
        pages: list[list[CallFields]] = []
        size, start = 0, end
        while start > 0 and len(pages) < MAX_CALLS and size < MAX_TEXT:
            start -= 1
            past = history.order[start]
            pages.append(past.events(self._running) if isinstance(past, PastCall) else [past])
            size += sum(map(_size, pages[-1]))
        return [event for page in reversed(pages) for event in page], start > 0

    async def _loaded(self, chat: Chat) -> _Story:
        story = self._story(chat)
        if self._journal.keeps:
            if story.past is None:
                story.past = start_task(self._load(chat, story), name="activity of a chat")
            await asyncio.wait([story.past])
        return story

    async def newest(self, chat: Chat) -> NewestCall | None:
        """The call that began last, of this service or of one before it."""
        story = await self._loaded(chat)
        for record in reversed(story.calls.values()):
            begun = record.begun[1]
            if begun["type"] == "call":
                output = "".join(text for _, _, text in record.outputs[-MAX_OUTPUT_EVENTS:])
                return NewestCall(begun, output, record.ended[1] if record.ended is not None else None)
        return None

    async def follow(self, chat: Chat, after: str = "", patience: float = 15.0) -> AsyncIterator[ActivityEvent | None]:
        """What is kept after an event, then what comes; None whenever nothing has come for a while."""
        boot, _, number = after.partition("-")
        seen = int(number) if boot == self.boot and _NUMBER.fullmatch(number) else _BEFORE_ALL
        while True:
            story = await self._loaded(chat)
            news = story.news
            if story.before <= seen < story.start:
                seen = story.start + _PAST
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

    def watch_agent(self, told: AgentStep | AgentUsage) -> None:
        self._activity.tell_agent(self._chat, self.id, told)

    def end(self, end: CallEnd) -> EndEvent:
        self._flush()
        event = end.event(self.id, round(time.monotonic() - self._began, 3))
        self._activity.tell_end(self._chat, self.id, event)
        return event


def _id(past: PastCall | NoteEvent) -> str:
    return past.begun["id"] if isinstance(past, PastCall) else past["id"]


def _size(fields: Mapping[str, Any]) -> int:
    """About as many characters as the event holds."""
    arguments = fields.get("arguments", {})
    files = (text for file in fields.get("files", ()) for text in file.values())
    texts = (*fields.values(), *fields.get("notes", ()), *arguments, *arguments.values(), *files)
    return 200 + sum(len(text) for text in texts if isinstance(text, str))


def _short(value: Any, most: int = _MAX_ARGUMENT) -> str:
    """An argument in few enough characters to be shown; where it is cut, that is said."""
    text = as_text(value, most)
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
