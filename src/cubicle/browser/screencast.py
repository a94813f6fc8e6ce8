"""The pictures of a chat's browser: of each tab that somebody looks at, as wide as those viewers need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from cubicle.browser import messages
from cubicle.browser.frame_width import FrameWidth
from cubicle.browser.tab import Tab
from cubicle.browser.viewer import Frame, Viewer

MAX_TABS = 6
"""That are drawn at once, for however many viewers: each costs the sandbox a part of its processors."""


class Screencast:
    """Frames of every tab that a viewer is shown. A frame is acknowledged to the browser when it comes: what changes
    while a few are unacknowledged is never sent, and a still page would stay out of date."""

    def __init__(
        self, viewers: Mapping[str, Viewer], tabs: Mapping[str, Tab], shown_to: Callable[[Viewer], Tab | None]
    ) -> None:
        self._viewers = viewers
        self._tabs = tabs
        self._shown_to = shown_to
        self._widths: dict[str, FrameWidth] = {}
        self._latest: dict[str, Frame] = {}
        self._seq = 0

    def has_room_for(self, tab: Tab) -> bool:
        """Whether one more tab may be drawn."""
        shown = {id(one) for viewer in self._viewers.values() if (one := self._shown_to(viewer)) is not None}
        return id(tab) in shown or len(shown) < MAX_TABS

    def latest(self, tab: Tab | None) -> Frame | None:
        return self._latest.get(tab.id) if tab is not None else None

    def changed(self, *viewers: Viewer) -> None:
        """These are shown another tab from now on: none of their old one is sent any more."""
        for viewer in viewers:
            viewer.drop_frame()
        self.adapt()
        for viewer in viewers:
            if (frame := self.latest(self._shown_to(viewer))) is not None:
                viewer.show(frame)

    def look(self, viewer: Viewer, visible: bool, width: float) -> None:
        """A viewer has a window of this width, or looks elsewhere. Who looks again is sent the picture of now: a page
        that stands still makes no other one."""
        again = visible and not viewer.visible
        viewer.look(visible, width)
        self.adapt()
        if again and (frame := self.latest(self._shown_to(viewer))) is not None:
            viewer.show(frame)

    def lost(self, tab: Tab) -> None:
        self._widths.pop(tab.id, None)
        self._latest.pop(tab.id, None)

    def adapt(self) -> None:
        """Have pictures come in the widths that the viewers need now; none of a tab at which nobody looks."""
        wanted: dict[str, list[float]] = {}
        for viewer in self._viewers.values():
            tab = self._shown_to(viewer)
            if tab is not None and viewer.visible:
                wanted.setdefault(tab.id, []).append(viewer.width)
        for tab in self._tabs.values():
            if not tab.session:
                continue
            needed = wanted.get(tab.id)
            width = self._widths.setdefault(tab.id, FrameWidth()).width(needed) if needed else 0
            if width and width != tab.casting:
                tab.cast(width)
            elif not width and tab.casting:
                tab.hush()
                self.lost(tab)

    def acknowledge(self, viewer: Viewer, seq: int) -> None:
        took = viewer.acknowledge(seq, asyncio.get_running_loop().time())
        tab = self._shown_to(viewer)
        if took is not None and tab is not None and tab.id in self._widths:
            self._widths[tab.id].acknowledged(took)
            self.adapt()

    def take(self, tab: Tab, params: dict[str, Any]) -> None:
        """A frame came. One of a tab that nobody is shown is not acknowledged, so no more of them come."""
        if not tab.pictured:
            return
        tab.acknowledge(params.get("sessionId"))
        metadata, data = params.get("metadata"), params.get("data")
        if not isinstance(metadata, dict) or not isinstance(data, str):
            return
        self._seq += 1
        width = messages.number(metadata.get("deviceWidth"), 1, 20_000, 1280)
        height = messages.number(metadata.get("deviceHeight"), 1, 20_000, 800)
        frame = self._latest[tab.id] = Frame(self._seq, tab.id, width, height, round(time.time(), 3), data)
        for viewer in self._viewers.values():
            if self._shown_to(viewer) is tab:
                viewer.show(frame)
