"""One person who watches a chat's browser: what is still to be sent to that person."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import struct
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from cubicle.browser.server_messages import ServerMessage

_MAX_MESSAGES = 256


def encoded(message: ServerMessage) -> str:
    return json.dumps(message, ensure_ascii=False)


@dataclass(eq=False)
class Frame:
    """One picture of a tab; made ready to send once, and only if somebody wants it."""

    seq: int
    tab: str
    width: float
    height: float
    at: float
    data: str = field(repr=False)

    @cached_property
    def packed(self) -> bytes:
        """Header length, header, JPEG; empty if it is no picture at all."""
        try:
            picture = base64.b64decode(self.data)
        except (binascii.Error, ValueError):
            return b""
        header = {"seq": self.seq, "w": self.width, "h": self.height, "ts": self.at, "tab": self.tab}
        encoded = json.dumps(header).encode()
        return b"".join((struct.pack(">I", len(encoded)), encoded, picture))


class Viewer:
    """Messages in their order, and of the frames only the latest: one on its way until it is acknowledged."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.name = ""
        self.known = False
        """The service knows the name: the person signed in."""
        self.width = 1280.0
        self.visible = True
        self.pinned = ""
        """The tab that this viewer chose to look at; empty: the one that everybody follows."""
        self.asked_at = float("-inf")
        self.looks, self.looked_at = 0.0, 0.0
        """How often it may look at another tab from then on; the clock is the event loop's."""
        self.faults = 0
        self.view_only = False
        """Came by a link that only lets one look."""
        self.over: tuple[int, str] | None = None
        self._messages: deque[str] = deque()
        self._frame: Frame | None = None
        self._sent: tuple[int, float] | None = None
        self._wake = asyncio.Event()

    def tell(self, message: ServerMessage) -> None:
        """Queue a message. A viewer who does not read for too long is dropped."""
        self.tell_text(encoded(message))

    def tell_text(self, message: str) -> None:
        """The same of a message that was encoded once for many viewers."""
        if len(self._messages) >= _MAX_MESSAGES:
            self.end(1011, "The viewer does not read.")
        else:
            self._messages.append(message)
            self._wake.set()

    def show(self, frame: Frame) -> None:
        self._frame = frame
        self._wake.set()

    def drop_frame(self) -> None:
        """Do not send the frame that waits: another tab is shown now."""
        self._frame = None

    def acknowledge(self, seq: int, now: float) -> float | None:
        """The frame of this number is on the screen; how long it took, if it was the one on its way."""
        if self._sent is None or self._sent[0] != seq:
            return None
        took = now - self._sent[1]
        self._sent = None
        self._wake.set()
        return took

    def look(self, visible: bool, width: float) -> None:
        self.visible, self.width = visible, width
        self._wake.set()

    def end(self, code: int, reason: str) -> None:
        """Nothing more for this viewer."""
        self.over = self.over or (code, reason)
        self._wake.set()

    async def next(self) -> str | bytes | None:
        """What to send next; None when it is over."""
        while True:
            if self._messages:
                return self._messages.popleft()
            if self.over is not None:
                return None
            if self._frame is not None and self._sent is None and self.visible:
                frame, self._frame = self._frame, None
                if frame.packed:
                    self._sent = (frame.seq, asyncio.get_running_loop().time())
                    return frame.packed
            self._wake.clear()
            await self._wake.wait()
