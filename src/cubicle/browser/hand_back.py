"""What a model is told when a person has used its browser and gave it back."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

from cubicle.core.chat import Chat
from cubicle.core.text import one_line

_MAX_CHATS = 5_000
_MAX_KEPT = 3
_MAX_ADDRESS = 300


@dataclass(frozen=True, slots=True)
class HandBack:
    """Somebody drove from then until then, in seconds since 1970; the address is what the browser shows now."""

    began: float
    ended: float
    name: str
    address: str


class HandBacks:
    """Kept until the chat's next tool answer, which says it once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Chat, list[HandBack]] = OrderedDict()

    def add(self, chat: Chat, one: HandBack) -> None:
        kept = self._kept.setdefault(chat, [])
        kept.append(one)
        del kept[:-_MAX_KEPT]
        self._kept.move_to_end(chat)
        if len(self._kept) > _MAX_CHATS:
            self._kept.popitem(last=False)

    def take(self, chat: Chat) -> str:
        """A sentence for the model; empty when nobody used the browser since it was told last."""
        kept = self._kept.pop(chat, None)
        if not kept:
            return ""
        times = " and ".join(f"from {_time(one.began)} to {_time(one.ended)}" for one in kept)
        address = one_line(kept[-1].address)[:_MAX_ADDRESS]
        now = f"now at {address}" if address else "now without an open page"
        return f"Note: the user used the browser {times} (UTC); {now}. Look at the page before you go on in it."

    def forget(self, chat: Chat) -> None:
        self._kept.pop(chat, None)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M")
