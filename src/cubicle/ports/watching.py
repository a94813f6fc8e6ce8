"""Following the ports of chats: one look at a chat each second, however many follow it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from cubicle.core.chat import Chat
from cubicle.log import chat_fields, detached
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

Seen = TypeVar("Seen")

_LOOK_SECONDS = 1.0
"""How soon somebody who follows sees a change."""


class _Watch(Generic[Seen]):
    """Of one chat, for all who follow it."""

    def __init__(self, chat: Chat, look: Callable[[Chat], Awaitable[Seen]]) -> None:
        self._chat = chat
        self._look = look
        self._changed = asyncio.Event()
        self.followers = 0
        self.version = 0
        self.seen: Seen | None = None
        self.is_over = False

    async def run(self) -> None:
        try:
            with detached():  # it is nobody's request
                await self._keep_looking()
        except Exception:  # those who follow are told by the end of it
            log.exception("the ports of a chat are not followed any more", extra=chat_fields(self._chat))
        finally:
            self.end()

    async def _keep_looking(self) -> None:
        while True:
            seen = await self._look(self._chat)
            if self.version == 0 or seen != self.seen:
                self.seen, self.version = seen, self.version + 1
                self._wake()
            await asyncio.sleep(_LOOK_SECONDS)

    def end(self) -> None:
        self.is_over = True
        self._wake()

    async def later_than(self, version: int, limit: float) -> bool:
        """Wait for something newer, or for the end; False if there was nothing within the limit."""
        try:
            async with asyncio.timeout(limit):
                while self.version == version and not self.is_over:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class PortWatches(Generic[Seen]):
    """All of one service. A chat is looked at for as long as somebody follows it."""

    def __init__(self, look: Callable[[Chat], Awaitable[Seen]]) -> None:
        self._look = look
        self._watches: dict[Chat, tuple[_Watch[Seen], asyncio.Task[None]]] = {}
        self._is_over = False

    async def follow(self, chat: Chat, heartbeat: float) -> AsyncGenerator[Seen | None]:
        """What is seen now, and each time that it has changed; None after so many seconds without a change."""
        async with self._watch(chat) as watch:
            version = 0
            while not (watch.is_over or self._is_over):
                if not await watch.later_than(version, heartbeat):
                    yield None
                elif watch.version != version and watch.seen is not None:
                    version = watch.version
                    yield watch.seen

    def end(self) -> None:
        """Whoever follows now is at the end, and so is whoever comes."""
        self._is_over = True
        for watch, _ in self._watches.values():
            watch.end()

    @asynccontextmanager
    async def _watch(self, chat: Chat) -> AsyncIterator[_Watch[Seen]]:
        found = self._watches.get(chat)
        if found is None or found[0].is_over:
            made = _Watch(chat, self._look)
            found = self._watches[chat] = made, start_task(made.run(), name=f"ports of {chat.digest}")
        watch, task = found
        watch.followers += 1
        try:
            yield watch
        finally:
            watch.followers -= 1
            if not watch.followers:
                if self._watches.get(chat) is found:
                    del self._watches[chat]
                task.cancel()
                await asyncio.wait([task])
