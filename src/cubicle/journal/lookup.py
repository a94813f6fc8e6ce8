"""Finds the call with an identity in a chat's journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cubicle.journal import reading
from cubicle.journal.format import Entry
from cubicle.journal.identities import CallIndex, Identities


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call as the journal has it."""

    begin: Entry
    end: Entry | None
    """None: the journal does not know its end."""


class CallLookup:
    """Reads each journal once; from then on, what is recorded keeps the index up to date."""

    def __init__(self, folder: Path, identities: Identities, written: Callable[[str], Awaitable[None]]) -> None:
        self._folder = folder
        self._identities = identities
        self._written = written
        self._loading: dict[str, asyncio.Event] = {}

    async def find(self, chat: str, identity: str, *, is_new: bool) -> KeptCall | None:
        """The newest call with this identity; `is_new`: nothing of the chat is on disk. Raises OSError."""
        found = (await self._index(chat, is_new)).find(identity)
        if found is None:
            return None
        await self._written(chat)
        begin, end = await asyncio.to_thread(reading.read_call, self._folder / chat, *found)
        if begin is None and end is not None:
            begin = _beginning(end)
        if begin is None or begin.fields.get("identity") != identity:
            return None
        return KeptCall(begin, end if end is not None and end.fields.get("call") == begin.fields.get("call") else None)

    async def _index(self, chat: str, is_new: bool) -> CallIndex:
        index = self._identities.of(chat)
        if index is None:
            index = self._identities.make(chat)
            if is_new:
                index.load(CallIndex(index.most))
            else:
                await self._load(chat, index)
        elif not index.loaded and chat in self._loading:
            await self._loading[chat].wait()
        self._identities.use(chat)
        return index

    async def _load(self, chat: str, index: CallIndex) -> None:
        done = self._loading[chat] = asyncio.Event()
        try:
            await self._written(chat)
            folder = self._folder / chat
            index.load(await asyncio.to_thread(lambda: CallIndex.read(index.most, reading.all_entries(folder))))
        finally:
            if not index.loaded:
                self._identities.forget(chat)
            if self._loading.get(chat) is done:
                del self._loading[chat]
            done.set()


def _beginning(end: Entry) -> Entry:
    """That of a call as its end has it, when it was dropped itself."""
    seconds = end.fields.get("seconds")
    at = end.at - seconds if isinstance(seconds, int | float) else end.at
    return Entry(end.number, at, "call", {name: value for name, value in end.fields.items() if name != "begun"})
