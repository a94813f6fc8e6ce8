"""The last picture of each chat's browser, for lists of chats. To take one wakes and starts nothing.

Of a browser that runs it is taken when somebody looks at such a list, and kept in memory. Of any other it is the newest
one of the replay, if the service keeps those.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from cubicle.browser import cdp, chromium
from cubicle.browser.cdp import CdpConnection, CdpError, CdpEvent
from cubicle.browser.frame_store import FrameStore
from cubicle.core.chat import Chat
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.fleet import Fleet

MAX_CHATS = 100
MAX_SIZE = 200_000
"""Bytes of one picture; a larger one is not kept."""
WIDTH = 480
AGAIN_SECONDS = 5.0
"""A chat is not asked more often."""
_QUALITY = 60
_LIMIT = 4.0
_JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True, slots=True)
class Picture:
    """One JPEG, and when it was taken."""

    data: bytes
    at: float


class LastPictures:
    """Bounded: of more chats, those that were pictured longest ago are forgotten."""

    def __init__(self, fleet: Fleet, frames: FrameStore) -> None:
        self._fleet = fleet
        self._frames = frames
        self._kept: OrderedDict[str, Picture] = OrderedDict()
        self._asked: OrderedDict[str, float] = OrderedDict()

    def taken(self, chat: Chat) -> float:
        """When the last picture was taken; 0: there is none."""
        kept, frame = self._kept.get(chat.digest), self._frames.newest(chat)
        return max(kept.at if kept is not None else 0.0, frame.at / 1000 if frame is not None else 0.0)

    async def of(self, chat: Chat) -> bytes | None:
        """The last picture, a JPEG."""
        kept, frame = self._kept.get(chat.digest), self._frames.newest(chat)
        if frame is not None and (kept is None or kept.at < frame.at / 1000):
            picture = await asyncio.to_thread(self._frames.picture, chat, frame)
            if picture is not None:
                return picture
        return kept.data if kept is not None else None

    def is_due(self, chat: Chat, since: float) -> bool:
        """Whether something has happened in the chat since its picture (`since`: when), and it may be asked again."""
        asked = self._asked.get(chat.digest)
        return asked is None or (time.time() - asked > AGAIN_SECONDS and since > asked - AGAIN_SECONDS)

    async def take(self, chat: Chat) -> bool:
        """Take a picture of what the browser shows now, if one runs; whether there is a new one. Never raises."""
        self._asked[chat.digest] = time.time()
        self._asked.move_to_end(chat.digest)
        while len(self._asked) > 10 * MAX_CHATS:
            self._asked.popitem(last=False)
        try:
            async with asyncio.timeout(_LIMIT), self._fleet.look(chat) as machine:
                data = await _first_frame(machine)
        except (SandboxError, TimeoutError):
            return False
        if data is None:
            return False
        self._kept[chat.digest] = Picture(data, time.time())
        self._kept.move_to_end(chat.digest)
        while len(self._kept) > MAX_CHATS:
            self._kept.popitem(last=False)
        return True

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        self._kept.pop(chat.digest, None)
        self._asked.pop(chat.digest, None)


async def _first_frame(machine: Machine) -> bytes | None:
    """By a screencast: a screenshot of another size would change for a moment what everybody sees."""
    tabs = await chromium.pages(machine)
    if not tabs:
        return None
    frame: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_event(event: CdpEvent) -> None:
        data = event.params.get("data")
        if event.method == "Page.screencastFrame" and isinstance(data, str) and not frame.done():
            frame.set_result(data)

    async with cdp.attached(machine, on_event) as devtools:
        await _begin(devtools, tabs[0]["id"])
        text = await frame
        devtools.end()
    return _jpeg(text)


async def _begin(devtools: CdpConnection, tab: str) -> None:
    session = (await devtools.call("Target.attachToTarget", targetId=tab, flatten=True)).get("sessionId")
    if not isinstance(session, str):
        raise CdpError("The browser gave no session.")
    wanted: dict[str, Any] = {"format": "jpeg", "quality": _QUALITY, "maxWidth": WIDTH, "maxHeight": WIDTH}
    await devtools.call("Page.startScreencast", session, **wanted)


def _jpeg(text: str) -> bytes | None:
    """The picture, if it is one of the size that was asked for: what a browser says is the sandbox's word."""
    if len(text) > MAX_SIZE * 4 // 3 + 4:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if data.startswith(_JPEG) else None
