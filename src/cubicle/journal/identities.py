"""Which entries of a chat belong to a call with this identity: numbers only, bounded, for the chats used last."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cubicle.journal.format import Entry

MAX_OF_ALL = 300_000
"""Calls of all chats that are known at once; of more, the chats that were used longest ago are read again."""
MAX_CHATS = 2_000
SMALLEST_CALL = 300
"""Bytes that the two lines of a call take at least."""
_LOOK_EVERY = 256
_REMOVED = (-1, -1)
"""In place of a running call whose sandbox was removed: its end is of nobody's identity."""


@dataclass(slots=True)
class CallIndex:
    """The calls of one chat that have an identity."""

    most: int
    loaded: bool = False
    calls: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By a hash of the identity: the number of its beginning, and that of its end (0: there is none). Of one whose
    beginning was dropped, both are that of its end."""
    running: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By the id of a call that has not ended: the hash of its identity, and the number of its beginning."""

    waiting: list[tuple[int, str, Mapping[str, object]]] = field(default_factory=list)
    """What was recorded before the rest was read."""

    def add(self, number: int, kind: str, fields: Mapping[str, object]) -> None:
        if not self.loaded:
            self.waiting.append((number, kind, fields))
        elif kind == "call" and (identity := fields.get("identity")):
            key = self._put(str(identity), number, 0)
            self.running[str(fields.get("call", ""))] = key, number
            _cut(self.running, self.most)
        elif kind == "end" and (ended := self.running.pop(str(fields.get("call", "")), None)) is not None:
            key, begun = ended
            if self.calls.get(key, (0, 0))[0] == begun:  # if not, another call has had the identity since
                self.calls[key] = (begun, number)
        elif kind == "end" and (identity := fields.get("identity")):
            begun, before = self.calls.get(_key(str(identity)), (0, 0))
            if begun == before:  # if not, the beginning of a newer one is there
                self._put(str(identity), number, number)
        elif kind == "lifecycle" and fields.get("what") == "removed":
            self.calls.clear()
            self.running = dict.fromkeys(self.running, _REMOVED)

    def _put(self, identity: str, begun: int, ended: int) -> int:
        key = _key(identity)
        self.calls.pop(key, None)
        self.calls[key] = (begun, ended)
        _cut(self.calls, self.most)
        return key

    @classmethod
    def read(cls, most: int, entries: Iterable[Entry]) -> CallIndex:
        """One of what is on disk. May block."""
        index = cls(most, loaded=True)
        for entry in entries:
            index.add(entry.number, entry.kind, entry.fields)
        return index

    def load(self, read: CallIndex) -> None:
        """Take in what is on disk, then what was recorded meanwhile, which may be there already."""
        self.loaded, self.calls, self.running = True, read.calls, read.running
        waiting, self.waiting = self.waiting, []
        for number, kind, fields in waiting:
            self.add(number, kind, fields)

    def find(self, identity: str) -> tuple[int, int] | None:
        return self.calls.get(_key(identity))


class Identities:
    """The indexes of the chats used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._uses = 0
        self._chats: OrderedDict[str, CallIndex] = OrderedDict()

    def of(self, chat: str) -> CallIndex | None:
        return self._chats.get(chat)

    def make(self, chat: str) -> CallIndex:
        index = self._chats[chat] = CallIndex(self._most)
        return index

    def use(self, chat: str) -> None:
        """This one is the newest now, if it is still there; now and then, the oldest make room."""
        if chat not in self._chats:
            return
        self._chats.move_to_end(chat)
        self._uses += 1
        if self._uses % _LOOK_EVERY == 0 or len(self._chats) > MAX_CHATS:
            total = sum(len(index.calls) for index in self._chats.values())
            while (total > MAX_OF_ALL or len(self._chats) > MAX_CHATS) and len(self._chats) > 1:
                _, oldest = self._chats.popitem(last=False)
                total -= len(oldest.calls)

    def forget(self, chat: str) -> None:
        self._chats.pop(chat, None)


def _key(identity: str) -> int:
    return int.from_bytes(hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _cut(kept: dict[Any, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]
