"""What happens in a chat, as it happens: every tool call, for the people who watch. Kept in memory, and bounded."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cubicle.rules.chats import Chat

MOST_EVENTS = 400
MOST_CHATS = 500
_LONGEST_TEXT = 4_000
_LONGEST_ARGUMENT = 2_000
_OUTPUT_WINDOW = 0.1


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; the id says where a reader that was cut off goes on."""

    id: str
    fields: dict[str, Any]


@dataclass(slots=True)
class _Story:
    events: deque[tuple[int, Event]] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    news: asyncio.Event = field(default_factory=asyncio.Event)
    tool: str = ""
    user: str = ""


class Activity:
    """The stories of all chats of this service."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._count = 0
        self._stories: OrderedDict[str, _Story] = OrderedDict()

    def last(self, chat: Chat) -> tuple[str, str]:
        """(the tool that was called last, who called it); empty where that is not known."""
        story = self._stories.get(chat.digest)
        return (story.tool, story.user) if story is not None else ("", "")

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        self._stories.pop(chat.digest, None)

    def begin(self, chat: Chat, tool: str, arguments: Mapping[str, Any], user: str = "") -> Happening:
        """A call has started."""
        happening = Happening(self, chat, f"{self._boot}-{self._count + 1}")
        described = arguments.get("description")
        shown = {name: _short(value) for name, value in arguments.items() if name != "description"}
        self._tell(
            chat,
            type="call",
            id=happening.id,
            tool=tool,
            description=_short(described) if isinstance(described, str) else None,
            arguments=shown,
            at=time.time(),
        )
        story = self._stories[chat.digest]
        story.tool, story.user = tool, user
        return happening

    def _tell(self, chat: Chat, **fields: Any) -> None:
        story = self._stories.setdefault(chat.digest, _Story())
        self._stories.move_to_end(chat.digest)
        while len(self._stories) > MOST_CHATS:
            self._stories.popitem(last=False)
        self._count += 1
        story.events.append((self._count, Event(f"{self._boot}-{self._count}", fields)))
        news, story.news = story.news, asyncio.Event()
        news.set()

    async def follow(self, chat: Chat, after: str = "", patience: float = 15.0) -> AsyncIterator[Event | None]:
        """What is kept after an event, then what comes; None whenever nothing has come for a while."""
        boot, _, number = after.partition("-")
        seen = int(number) if boot == self._boot and number.isdecimal() else 0
        while True:
            story = self._stories.setdefault(chat.digest, _Story())
            news = story.news
            for count, event in list(story.events):
                if count > seen:
                    seen = count
                    yield event
            try:
                async with asyncio.timeout(patience):
                    await news.wait()
            except TimeoutError:
                yield None


class Happening:
    """One call under way."""

    def __init__(self, activity: Activity, chat: Chat, id: str) -> None:
        self._activity = activity
        self._chat = chat
        self.id = id
        self._began = time.monotonic()
        self._output = ""
        self._told = 0.0

    def output(self, text: str) -> None:
        """Live output, in batches; of a flood, its end."""
        self._output = (self._output + text)[-_LONGEST_TEXT:]
        if time.monotonic() - self._told >= _OUTPUT_WINDOW:
            self._flush()

    def _flush(self) -> None:
        if self._output:
            self._activity._tell(self._chat, type="output", id=self.id, text=self._output)
            self._output = ""
        self._told = time.monotonic()

    def end(self, *, error: bool, result: str) -> None:
        self._flush()
        seconds = round(time.monotonic() - self._began, 3)
        shown = result[-_LONGEST_TEXT:]
        self._activity._tell(self._chat, type="end", id=self.id, seconds=seconds, error=error, result=shown)


def _short(value: Any) -> Any:
    """An argument in few enough characters to be shown."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_ARGUMENT else f"{text[:_LONGEST_ARGUMENT]}…"
