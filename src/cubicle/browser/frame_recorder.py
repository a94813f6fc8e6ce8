"""Takes the pictures of browsers for the replays: one every few seconds in which something changed.

Only while the sandbox is used by somebody or something, and only of a browser that runs: nothing is started for it, and
a sandbox is not kept up by it. While a person drives the browser none are taken: what is typed is not kept.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cubicle.browser import cdp, chromium, messages
from cubicle.browser.cdp import CdpEvent
from cubicle.browser.frame_file import MAX_PICTURE, FrameFacts, facts_of
from cubicle.browser.frame_store import FrameStore
from cubicle.browser.server_messages import TabRecord
from cubicle.core.chat import Chat
from cubicle.journal import reading
from cubicle.log import chat_fields
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

EVERY = 3.0
_SLOWEST = 4
"""While nothing changes the pause grows, up to so many times as long."""
_WIDTH, _QUALITY = 800, 50
_TIMEOUT = 8.0
_FRAME_TIMEOUT = 3.0
_MAX_CONCURRENT = 8
_MAX_PAGES = 4
"""That are asked for a picture."""
_SWEEP_EVERY = 3600.0


Taken = tuple[FrameFacts, bytes]
TakeFrame = Callable[[Machine], Awaitable[Taken | None]]


class FrameRecorder:
    """A service of every sandbox. `in_use` and `is_driven` are set when those are there who know it."""

    def __init__(
        self, store: FrameStore, journals: Path, *, every: float | None = None, take: TakeFrame | None = None
    ) -> None:
        self.store = store
        self._journals = journals
        self._every = EVERY if every is None else every
        self._take = take or take_frame
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self.in_use: Callable[[Chat], bool] = lambda chat: False
        """Whether somebody or something uses the chat's sandbox."""
        self.is_driven: Callable[[Chat], bool] = lambda chat: False
        """Whether a person has control of the chat's browser."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The life of the store: what is there is found, and what is to go goes, now and every hour."""
        try:
            await asyncio.to_thread(self.store.open)
        except OSError as error:
            log.warning("the pictures of browsers cannot be read: %s", error.strerror)
        task = start_task(self._sweep(), name="sweep frames")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _sweep(self) -> None:
        while True:
            await asyncio.to_thread(self.store.sweep, self._oldest)
            await asyncio.sleep(_SWEEP_EVERY)

    def _oldest(self, digest: str) -> float | None:
        """When the first entry of a chat's journal was written; blocks."""
        return oldest_entry(self._journals / digest)

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """Beside a sandbox while it is up."""
        if not self.store.keeps:
            yield
            return
        self.store.admit(chat)
        task = start_task(self._follow(chat, machine), name=f"frames of {machine.name}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def forget(self, chat: Chat) -> None:
        await asyncio.to_thread(self.store.forget, chat)

    async def _follow(self, chat: Chat, machine: Machine) -> None:
        seen, pace, used = "", 1, False
        while True:
            await asyncio.sleep(self._every * pace)
            was_used, used = used, self.in_use(chat)
            if not (used or was_used):  # one more when the use is over: how it was left
                continue
            try:
                digest = await self._look(chat, machine, seen)
            except Exception:  # what a browser says is the sandbox's word
                log.exception("no picture of a browser could be taken", extra=chat_fields(chat))
                return
            pace = min(pace + 1, _SLOWEST) if digest == seen else 1
            seen = digest

    async def _look(self, chat: Chat, machine: Machine, seen: str) -> str:
        """Take a picture, and keep it if it is another than the last one; its digest, or that of the last one."""
        if self.is_driven(chat):
            return seen
        async with self._slots:
            taken = await self._take(machine)
        if taken is None or self.is_driven(chat):
            return seen
        facts, picture = taken
        # A page has its picture before its title: then it is kept again.
        shown = f"{facts.url}\n{bool(facts.title)}\n".encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(shown + picture).hexdigest()
        if digest != seen:
            await asyncio.to_thread(self.store.add, chat, time.time(), facts, picture)
        return digest


async def take_frame(machine: Machine) -> Taken | None:
    """A picture of the page in front; None if no browser runs or it gives none now."""
    taken = None
    try:
        async with asyncio.timeout(_TIMEOUT):
            pages = await chromium.pages(machine)
            if pages:
                taken = await _cast(machine, pages[:_MAX_PAGES])
    except* (SandboxError, TimeoutError):
        pass
    return taken


async def _cast(machine: Machine, pages: Sequence[TabRecord]) -> Taken | None:
    """The first frame of a screencast: smaller than a screenshot, and nothing in the page can tell.

    All are asked: the browser lists the one that was opened or activated last first, and that need not be the one that
    is in front. Each says first whether it is; one behind another may still give a frame, of when it was in front.
    """
    came: asyncio.Future[CdpEvent] = asyncio.get_running_loop().create_future()
    in_front: set[str] = set()

    def on_event(event: CdpEvent) -> None:
        if event.method == "Page.screencastVisibilityChanged":
            (in_front.add if event.params.get("visible") is True else in_front.discard)(event.session)
        elif event.method == "Page.screencastFrame" and event.session in in_front and not came.done():
            came.set_result(event)

    async with cdp.attached(machine, on_event) as devtools:
        by_session: dict[str, TabRecord] = {}
        for page in pages:
            answer = await devtools.call("Target.attachToTarget", targetId=page["id"], flatten=True)
            session = messages.short(answer.get("sessionId"), 100)
            by_session[session] = page
            devtools.tell("Page.enable", session)
            devtools.tell(
                "Page.startScreencast", session, format="jpeg", quality=_QUALITY, maxWidth=_WIDTH, maxHeight=_WIDTH
            )
        async with asyncio.timeout(_FRAME_TIMEOUT):
            event = await came
    shown = by_session.get(event.session)
    return None if shown is None else read_frame(event.params, shown["url"], shown["title"])


def read_frame(params: dict[str, object], url: str, title: str) -> Taken | None:
    """What a frame event holds; None if that is no picture of a size that is kept."""
    data, metadata = params.get("data"), params.get("metadata")
    if not isinstance(data, str) or len(data) > MAX_PICTURE * 4 // 3 + 4:
        return None
    try:
        picture = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    said = metadata if isinstance(metadata, dict) else {}
    width = messages.number(said.get("deviceWidth"), 1, 20_000, 1280)
    height = messages.number(said.get("deviceHeight"), 1, 20_000, 800)
    return facts_of(width, height, url, title), picture


def oldest_entry(folder: Path) -> float | None:
    """When the first entry of a journal that is still there was written; None if there is none. Blocks.

    Raises OSError where that cannot be told now.
    """
    for _, path in reading.segments(folder):
        try:
            line = reading.first_line(path)
        except FileNotFoundError:  # it has just aged out
            continue
        if line is not None:
            return line.at
    return None
