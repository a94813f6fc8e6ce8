"""The pictures of a screen: which tab sends them, how wide they are, and who gets them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from cubicle.browser import messages
from cubicle.browser.frame_width import FrameWidth
from cubicle.browser.tab import Tab
from cubicle.browser.viewer import Frame, Viewer


class Screencast:
    """Frames of the shown tab, for every viewer. A frame is acknowledged to the browser when it comes: what changes
    while a few are unacknowledged is never sent, and a still page would stay out of date."""

    def __init__(self, viewers: Mapping[str, Viewer]) -> None:
        self._viewers = viewers
        self._scaling = FrameWidth()
        self._seq = 0
        self.latest: Frame | None = None
        self.tab: Tab | None = None

    def show(self, tab: Tab | None) -> None:
        """From now on pictures come from this tab, and none of another is sent any more."""
        if self.tab is not None and self.tab.casting:
            self.tab.hush()
        self.tab, self.latest = tab, None
        for viewer in self._viewers.values():
            viewer.drop_frame()
        self.adapt()

    def adapt(self) -> None:
        """Have pictures come in the width that the viewers need now; none while nobody looks."""
        tab = self.tab
        if tab is None or not tab.session:
            return
        wanted = [viewer.width for viewer in self._viewers.values() if viewer.visible]
        width = self._scaling.width(wanted) if wanted else 0
        if width and width != tab.casting:
            tab.cast(width)
        elif not width and tab.casting:
            tab.hush()

    def acknowledge(self, viewer: Viewer, seq: int) -> None:
        took = viewer.acknowledge(seq, asyncio.get_running_loop().time())
        if took is not None:
            self._scaling.acknowledged(took)
            self.adapt()

    def take(self, tab: Tab, params: dict[str, Any]) -> None:
        """A frame came. One of a tab that is not shown is not acknowledged, so no more of them come."""
        if tab is not self.tab or not tab.pictured:
            return
        tab.acknowledge(params.get("sessionId"))
        metadata, data = params.get("metadata"), params.get("data")
        if not isinstance(metadata, dict) or not isinstance(data, str):
            return
        self._seq += 1
        width = messages.number(metadata.get("deviceWidth"), 1, 20_000, 1280)
        height = messages.number(metadata.get("deviceHeight"), 1, 20_000, 800)
        self.latest = Frame(self._seq, tab.id, width, height, round(time.time(), 3), data)
        for viewer in self._viewers.values():
            viewer.show(self.latest)
