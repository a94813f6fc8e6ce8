"""The shape of the mouse: what the page under it would show to somebody who sat before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cubicle.browser.cdp import CdpError
from cubicle.browser.tab import Tab
from cubicle.browser.viewer import Viewer

_PAUSE = 0.1
_LONGEST_PAUSE = 0.5


class Pointer:
    """Asks where the mouse came to rest, a few times a second at most, and tells the one who drives of a change.

    A busy page may not answer in time. It is asked again for as long as the mouse rests there and the answer is wanted.
    """

    def __init__(
        self, start: Callable[[Coroutine[Any, Any, None]], None], wanted: Callable[[Viewer, Tab], bool]
    ) -> None:
        self._start = start
        self._wanted = wanted
        self._moved: tuple[Viewer, Tab, float, float] | None = None
        self._following = False
        self._told: tuple[Viewer, str] | None = None

    def move(self, viewer: Viewer, tab: Tab, x: float, y: float) -> None:
        """The mouse is here now."""
        self._moved = (viewer, tab, x, y)
        if not self._following:
            self._following = True
            self._start(self._follow())

    async def _follow(self) -> None:
        pause = _PAUSE
        try:
            while self._moved is not None:
                place, self._moved = self._moved, None
                viewer, tab, x, y = place
                try:
                    self._tell(viewer, await tab.cursor_at(x, y))
                    pause = _PAUSE
                except CdpError:
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    if self._moved is None and tab.reachable and self._wanted(viewer, tab):
                        self._moved = place
                await asyncio.sleep(pause)
        finally:
            self._following = False

    def _tell(self, viewer: Viewer, shape: str) -> None:
        if self._told != (viewer, shape):
            self._told = (viewer, shape)
            viewer.tell({"type": "cursor", "cursor": shape})
