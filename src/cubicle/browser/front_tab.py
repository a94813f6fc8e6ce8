"""Which tab of a chat's browser is in front: the one that was opened or activated last, by the model or by a person.

DevTools has no event for it. The visibility of tabs does not tell it: Playwright emulates focus in every page, and so
does the live view in the tabs that it shows; then all of them count as visible. But `/json/list` names the tabs in the
order of their last activation.

Two things put a tab at the head of that list though nobody brought it to the front: it was opened in the background;
or it is in front already, and a client ceases to emulate focus in it, as the live view does when it shows the next one.
So a tab that was opened in the background does not count as in front until another one stood before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cubicle.browser import cdp_http
from cubicle.browser.chromium import PORT
from cubicle.browser.tab import Tab
from cubicle.machine.errors import MachineError
from cubicle.machine.fetch import fetch
from cubicle.machine.machine import Machine

_MAX_LIST = 512 * 1024
_TIMEOUT = 4.0
_EVERY = 0.3
_EVERY_UNSEEN = 5.0
_SETTLE = 0.03
"""A switch of tabs brings several events; the list is read when they are over."""


class FrontTab:
    """The order of activation, and which tab was found in front last."""

    def __init__(self, machine: Machine, tabs: Mapping[str, Tab]) -> None:
        self._machine = machine
        self._tabs = tabs
        self._order: list[str] = []
        self._found = ""
        self._new: set[str] = set()
        """Opened while somebody watched, and not seen behind another one yet."""
        self._closed = False
        self._changed = asyncio.Event()

    def opened(self, id: str) -> None:
        self._new.add(id)

    def closed(self, id: str) -> None:
        """A tab is gone. If it was in front, the browser brings up another by itself: nobody uses that one by it."""
        self._new.discard(id)
        self._closed = self._closed or id == self._found
        self.look_again()

    def look_again(self) -> None:
        """Something happened that may have brought up another tab."""
        self._changed.set()

    async def wait(self, *, seen: bool) -> None:
        """Until it is time to look: something happened, or a part of a second went by while somebody watches."""
        try:
            async with asyncio.timeout(_EVERY if seen else _EVERY_UNSEEN):
                await self._changed.wait()
            await asyncio.sleep(_SETTLE)
        except TimeoutError:
            pass
        self._changed.clear()

    async def read(self) -> Tab | None:
        """The tab in front, if it is another than the last time."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer = await fetch(self._machine, PORT, "GET", "/json/list", most=_MAX_LIST)
            return self.see([page["id"] for page in cdp_http.pages(answer.body)])
        except (MachineError, cdp_http.NotDevTools, TimeoutError):
            return self.see(self._order)  # what was read last holds

    def see(self, order: list[str]) -> Tab | None:
        self._order = order
        front = self._front()
        if front is None or front.id == self._found:
            return None
        self._found = front.id
        if self._closed:
            self._closed = False
            return None
        return front

    def _front(self) -> Tab | None:
        """Of the attached tabs, the one that was activated last."""
        self._new &= self._tabs.keys()
        ordered = [tab for id in self._order if (tab := self._tabs.get(id)) is not None and tab.session]
        counted = (tab for tab in ordered if tab.id not in self._new or tab.drawn_at_first)
        front = next(counted, ordered[0] if ordered else None)
        if front is not None:
            self._new.difference_update(tab.id for tab in ordered[ordered.index(front) :])
        return front

    def any(self) -> Tab | None:
        """A tab to show when nothing says which one is in front."""
        attached = [tab for tab in self._tabs.values() if tab.session]
        return next((tab for tab in reversed(attached) if tab.visible), attached[-1] if attached else None)
