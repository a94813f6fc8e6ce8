"""The shape of the mouse: what the page under it would show to somebody who sat before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cubicle.browser.tab import Tab
from cubicle.browser.viewer import Viewer

_PAUSE = 0.1


class Pointer:
    """Asks where the mouse came to rest, a few times a second at most, and tells the one who drives of a change."""

    def __init__(self, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._start = start
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
        try:
            while self._moved is not None:
                (viewer, tab, x, y), self._moved = self._moved, None
                shape = await tab.cursor_at(x, y)
                if self._told != (viewer, shape):
                    self._told = (viewer, shape)
                    viewer.tell({"type": "cursor", "cursor": shape})
                await asyncio.sleep(_PAUSE)
        finally:
            self._following = False
