"""The screens of all chats that somebody watches: one each, from the first viewer to the last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self
from weakref import WeakValueDictionary

from cubicle.browser.chromium import NoBrowser
from cubicle.browser.hand_back import HandBack, HandBacks
from cubicle.browser.input_gate import InputGate
from cubicle.browser.live_view import LiveView
from cubicle.browser.viewer import Viewer
from cubicle.core.chat import Chat
from cubicle.log import chat_fields
from cubicle.machine.machine import Machine

log = logging.getLogger(__name__)


class LiveViews:
    """Entered once, by the service."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._screens: dict[str, LiveView] = {}
        self._gates: WeakValueDictionary[str, InputGate] = WeakValueDictionary()
        self.hand_backs = HandBacks()
        self.told: Callable[[Chat, HandBack], None] = lambda chat, one: None
        """Called when somebody who used a chat's browser gives it back."""

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for screen in self._screens.values():
            screen.left.set()
        await self._group.__aexit__(None, None, None)

    def gate(self, chat: Chat) -> InputGate:
        """By which DevTools input of this chat is held while somebody drives; the caller keeps it."""
        found = self._gates.get(chat.digest)
        if found is None:
            found = self._gates[chat.digest] = InputGate()
        return found

    def is_driven(self, chat: Chat) -> bool:
        """Whether a person has control of the chat's browser."""
        screen = self._screens.get(chat.digest)
        return screen is not None and screen.driving.holder is not None

    def _handed_back(self, chat: Chat, one: HandBack) -> None:
        self.hand_backs.add(chat, one)
        self.told(chat, one)

    @asynccontextmanager
    async def join(self, chat: Chat, machine: Machine) -> AsyncIterator[tuple[LiveView, Viewer]]:
        """Watch a chat's browser. NoBrowser when none runs."""
        screen = self._screens.get(chat.digest)
        if screen is None or screen.left.is_set():
            screen = self._screens[chat.digest] = LiveView(
                machine, self.gate(chat), lambda one: self._handed_back(chat, one)
            )
            self._group.create_task(_run(screen, chat), name=f"screen {chat.digest}")
        screen.interest += 1
        try:
            await asyncio.shield(screen.ready)
            if screen.left.is_set():
                raise NoBrowser("No browser runs in this sandbox.")
            viewer = screen.enter()
            try:
                yield screen, viewer
            finally:
                screen.leave(viewer)
        finally:
            screen.interest -= 1
            if not screen.interest:
                screen.left.set()
                if self._screens.get(chat.digest) is screen:
                    del self._screens[chat.digest]


async def _run(screen: LiveView, chat: Chat) -> None:
    """What a browser says is the sandbox's word: whatever it brings about ends this screen, not the others."""
    try:
        await screen.run()
    except Exception:
        log.exception("a live view failed", extra=chat_fields(chat))
