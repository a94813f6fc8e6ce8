"""Which MCP clients have come, for people who wait for their first one. Bounded, and forgotten with the service."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from cubicle.chat.news import News
from cubicle.core.chat import Chat
from cubicle.core.text import one_line

MAX_CHATS = 1000
_MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class SeenClient:
    """The client that used a chat last."""

    chat: Chat
    name: str
    """As it calls itself; empty where it did not say."""
    at: float
    """Seconds since 1970."""


class Clients:
    """The clients of all chats of this service."""

    def __init__(self, news: News | None = None) -> None:
        self._seen: OrderedDict[str, SeenClient] = OrderedDict()
        self._news = news or News()
        """Told when a chat has another client."""

    def note(self, chat: Chat, name: object = "") -> None:
        """A client has made a request in this chat. The name comes from anybody."""
        before = self._seen.get(chat.digest)
        said = one_line(name, _MAX_NAME) if isinstance(name, str) and name else before.name if before else ""
        self._seen[chat.digest] = SeenClient(chat, said, time.time())
        self._seen.move_to_end(chat.digest)
        while len(self._seen) > MAX_CHATS:
            self._seen.popitem(last=False)
        if before is None or before.name != said:
            self._news.tell()

    def newest(self, shows: Callable[[Chat], bool]) -> SeenClient | None:
        """The one that came last, of those whose chat may be shown."""
        return next((seen for seen in reversed(self._seen.values()) if shows(seen.chat)), None)

    def of_tenant(self, tenant: str, most: int) -> list[SeenClient]:
        """Those of one tenant that came last, the newest first."""
        return list(islice((seen for seen in reversed(self._seen.values()) if seen.chat.tenant == tenant), most))

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        self._seen.pop(chat.digest, None)
