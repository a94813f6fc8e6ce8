"""Plays the demo in a chat, through the same tools as MCP calls: journal, activity, quotas and audit log see them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from cubicle.chat.news import News
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.core.text import one_line
from cubicle.log import bound, detached
from cubicle.tasks import start_task
from cubicle.tools.base import Call
from cubicle.tools.demo_script import STEPS, Step
from cubicle.tools.registry import Registry

log = logging.getLogger(__name__)

DEMO_CHAT = "demo"
MAX_AT_ONCE = 8
"""Demos of the whole service: each starts a sandbox and a browser."""
AGAIN_SECONDS = 5.0
"""How soon after its end a demo may be played again in the same chat."""
_PAUSE = 0.5
"""Seconds between two steps: people want to see each."""
_LIMIT = 180.0
_MAX_KEPT = 1000
_MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a demo is."""

    state: Literal["playing", "over", "failed"]
    step: int
    """The number of the step that runs, or of the last one; the first is 1."""
    steps: int
    says: str
    """What that step does; of a demo that failed, why."""
    at: float
    """Since when, in seconds since 1970."""


class NotNow(Exception):
    """No demo is begun; the message says why. `seconds`: when to try again."""

    def __init__(self, reason: str, seconds: int) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Demos:
    """The demos of all chats: one at a time in each. Entered once, by the service."""

    def __init__(
        self, registry: Registry, news: News | None = None, steps: Sequence[Step] = STEPS, *, pause: float = _PAUSE
    ) -> None:
        self._registry = registry
        self._steps = tuple(steps)
        self._pause = pause
        self._progress: OrderedDict[str, Progress] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news = news or News()
        """Told when a demo goes on."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def progress(self, chat: Chat) -> Progress | None:
        """How far the chat's last demo is; None if there was none."""
        return self._progress.get(chat.digest)

    def play(self, caller: Caller) -> Progress:
        """Begin in the caller's chat, unless it plays there already. Raises NotNow."""
        chat = caller.chat
        before = self._progress.get(chat.digest)
        if chat.digest in self._tasks and before is not None:
            return before
        left = AGAIN_SECONDS - (time.time() - before.at) if before is not None else 0
        if 0 < left <= AGAIN_SECONDS:
            raise NotNow("The demo has just been played here. Try again in a few seconds.", int(left) + 1)
        if len(self._tasks) >= MAX_AT_ONCE:
            raise NotNow("Other demos are being played. Try again in half a minute.", 30)
        began = self._tell(chat, Progress("playing", 0, len(self._steps), "Start the computer", time.time()))
        task = self._tasks[chat.digest] = start_task(self._run(caller), name="demo")
        task.add_done_callback(lambda _: self._tasks.pop(chat.digest, None))
        return began

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        if (task := self._tasks.get(chat.digest)) is not None:
            task.cancel()
        self._progress.pop(chat.digest, None)

    async def _run(self, caller: Caller) -> None:
        chat = caller.chat
        with detached(), bound(chat=chat.id, tenant=chat.tenant):
            try:
                async with asyncio.timeout(_LIMIT):
                    reason = await self._play(caller)
            except TimeoutError:
                reason = f"It did not end within {_LIMIT:g} seconds."
            except asyncio.CancelledError:
                self._end(chat, "It was ended.")
                raise
            except Exception:
                log.exception("the demo failed")
                reason = "The service failed here: its log says why."
            self._end(chat, reason)

    async def _play(self, caller: Caller) -> str:
        """Why it stopped before its end, or nothing."""
        for number, step in enumerate(self._steps, 1):
            playing = Progress("playing", number, len(self._steps), step.description, time.time())
            self._tell(caller.chat, playing)
            tool = self._registry.find(step.tool)
            answer = await self._registry.run(tool, Call(caller), step.arguments)
            if answer.error and not step.fails:
                return one_line(f"{step.description}: {answer.text}", _MAX_REASON)
            if number < len(self._steps):
                await asyncio.sleep(self._pause)
        return ""

    def _end(self, chat: Chat, reason: str) -> None:
        last = self._progress.get(chat.digest)
        if last is not None:
            state: Literal["over", "failed"] = "failed" if reason else "over"
            self._tell(chat, replace(last, state=state, says=reason or last.says, at=time.time()))

    def _tell(self, chat: Chat, progress: Progress) -> Progress:
        self._progress[chat.digest] = progress
        self._progress.move_to_end(chat.digest)
        while len(self._progress) > _MAX_KEPT:
            self._progress.popitem(last=False)
        self._news.tell()
        return progress
