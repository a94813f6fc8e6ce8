"""Tool calls that run: each in a task of its own, owned by the endpoint and not by the request that began it.

Several requests may follow one call: its live output, then its answer. A call ends by itself, when it is cancelled, or
when nobody follows it any more: at once, or after its grace time if whoever left can come back to it. When the service
stops, those who follow get an answer that says what becomes of the call.

CallCancelled    the call was ended before it had an answer
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Self

import anyio

from cubicle.core.chat import Chat
from cubicle.fairness.fair_queue import FairQueue, LoopShare, current, metered
from cubicle.fairness.fair_slots import Busy
from cubicle.log import chat_fields
from cubicle.mcp_api.task_input import TaskInput
from cubicle.tasks import start_task
from cubicle.tools.base import Answer, Step, TextContent, fail
from cubicle.tools.output import Cap

log = logging.getLogger(__name__)

MAX_CALLS = 16_384
MAX_CALLS_OF_A_TENANT = 4096
MAX_CALLS_OF_A_CHAT = 1024
MAX_LEFT_OF_A_TENANT = 512
"""Calls in their grace time, with nobody who follows them. One more ends at once."""
MAX_LEFT_OF_A_CHAT = 64
MAX_REQUESTS = 64
"""Requests for one call by which it can be cancelled: the newest. Any number may come for one that runs for hours."""
_START_SECONDS = 2.0
_LOOK_SECONDS = 0.05
MAX_KEPT_OUTPUT = 16_000
"""Characters of a call's live output that are kept for those who come later: its two ends."""

CAN_GO_ON = ("bash_tool", "sub_agent")
"""Tools whose work goes on in the sandbox while the service is restarted."""
_GOES_ON = (
    "The service is being restarted, so this answer is not complete. The work was not ended: it goes on in the "
    "sandbox. Do not start it again. In a minute, look at what it has done; a call with the same Idempotency-Key gets "
    "its answer."
)
_NOT_BEGUN = "The service is being restarted, and this call was not begun: nothing was done. Try again in a minute."
_IN_PART = (
    "The service is being restarted while this ran, so it may have been done in part. Look at what it left behind "
    "before you call again."
)

Report = Callable[[str], None]


class CallCancelled(Exception):
    """The call was ended before it had an answer."""


class RunningCall:
    """One call, from its start to its answer."""

    def __init__(self, calls: RunningCalls, id: str, chat: Chat, tool: str, *, outlives: bool, grace: float) -> None:
        self.id = id
        self.chat = chat
        self.tool = tool
        self.outlives = outlives
        """It goes on when nobody follows it."""
        self.grace = grace
        """Seconds that it goes on when nobody follows it, otherwise."""
        self.cancelled = False
        """Whether it was cancelled, by the client or by a person: not because nobody followed it."""
        self.task = ""
        """Its identity, if it runs as an MCP task."""
        self.begun = asyncio.Event()
        """Set when the journal has been given the call, or when it has ended."""
        self._calls = calls
        self._scope = anyio.CancelScope()
        self._kept = Cap(MAX_KEPT_OUTPUT)
        self._followers: list[Report] = []
        self._ends: list[Callable[[], None]] = []
        self._requests: deque[Callable[[], None]] = deque()
        self._settles: dict[Callable[[], None], None] = {}
        self._left: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.is_done = False
        self._settled = asyncio.Event()
        self._answer: Answer | None = None
        self._parting: Answer | None = None
        """What those who follow are told when the service stops."""
        self.step: Step = "waits"
        self.on_detached: Callable[[], object] | None = None
        """Called if those who follow are told that it goes on without them."""
        self.failure: Exception | None = None
        """What the tool raised."""
        self.input = TaskInput(self._tell_watchers)
        """What the tool asks the user, if it is a task."""
        self._watchers: list[Callable[[], None]] = []

    @property
    def is_settled(self) -> bool:
        """Whether there is an answer for those who follow: the call has ended, or the service stops."""
        return self._settled.is_set()

    @property
    def is_followed(self) -> bool:
        return bool(self._followers)

    def report(self, text: str) -> None:
        """Live output, to all who follow. Never waits."""
        self._kept.feed(text)
        for follower in self._followers:
            follower(text)

    def cancel(self) -> None:
        """End the call: somebody does not want it any more."""
        if not self.is_done:
            self.cancelled = True
            self.end()

    def end(self) -> None:
        """End the call, as if nobody followed it any more."""
        self._scope.cancel()

    def end_after(self, seconds: float) -> None:
        """Cancel the call when it runs so long from now on; this takes the place of a limit before."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(seconds, self.cancel)

    def on_end(self, tell: Callable[[], None]) -> None:
        """Call this when the call has ended; at once, if it has."""
        if self.is_done:
            tell()
        else:
            self._ends.append(tell)

    def asked_for(self, forget: Callable[[], None]) -> None:
        """A request is for this call. `forget` is called when the call has ended, or is not that request's any more."""
        self._requests.append(forget)
        if self.is_done or len(self._requests) > MAX_REQUESTS:
            self._requests.popleft()()

    def on_settled(self, tell: Callable[[], None]) -> None:
        """Call this when the call is settled; at once, if it is."""
        if self.is_settled:
            tell()
        else:
            self._settles[tell] = None

    def forget_on_settled(self, tell: Callable[[], None]) -> None:
        """Whoever leaves is not told: a call may be followed any number of times."""
        self._settles.pop(tell, None)

    def _settle(self) -> None:
        self._settled.set()
        settles, self._settles = self._settles, {}
        for tell in settles:
            tell()

    @contextmanager
    def watched(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call this whenever its status changes, during the block. It is not followed by that."""
        self._watchers.append(tell)
        try:
            yield
        finally:
            self._watchers.remove(tell)

    def _tell_watchers(self) -> None:
        for tell in list(self._watchers):
            tell()

    @contextmanager
    def followed(self, report: Report) -> Iterator[None]:
        """Follow the call for the block."""
        self.follow(report)
        try:
            yield
        finally:
            self.leave(report)

    def follow(self, report: Report) -> None:
        """Follow the call until `leave`: what is kept of its output comes first."""
        if self._kept.characters:
            report(self._kept.text())
        self._followers.append(report)
        self._stop_waiting()

    def leave(self, report: Report) -> None:
        """The last who leaves may end the call."""
        self._followers.remove(report)
        self.expect_followers()

    def expect_followers(self) -> None:
        """If nobody follows the call, its grace time begins now, unless it has begun."""
        if not self._followers and not self.is_done and self._left is None:
            self._wait_for_followers()

    async def wait(self) -> None:
        """Until the call has ended, however it did, or the service stops."""
        await self._settled.wait()

    def answer(self) -> Answer:
        """What the tool answered, or what is to be told instead, after `wait`. Raises what it raised, and
        CallCancelled."""
        if self.failure is not None:
            raise self.failure
        if self._answer is None and self._parting is None:
            raise CallCancelled
        return self._answer or self._parting or fail(_IN_PART)

    def part(self, *, comes_back: bool) -> None:
        """The service stops: tell those who follow what becomes of the call. What did not begin does not begin now.
        `comes_back`: the one who follows asks the next service."""
        if self.is_done or not self._followers:
            return
        if self.outlives or (self.step == "runs" and self.tool in CAN_GO_ON):
            self._parting = _so_far(self._kept)
            if not comes_back and self.on_detached is not None:
                self.on_detached()
        else:
            is_done_once = self.step == "waits" and self.tool in CAN_GO_ON
            self._parting = fail(_NOT_BEGUN if is_done_once else _IN_PART)
            self._scope.cancel()
        self._settle()

    def _wait_for_followers(self) -> None:
        """Nobody follows: go on, end now, or end when the grace time is over."""
        if self.outlives or self._calls.stopping:
            return
        if self.grace <= 0 or not self._calls.may_be_left(self.chat):
            self._scope.cancel()
            return
        self._calls.count_left(self.chat, 1)
        self._left = asyncio.get_running_loop().call_later(self.grace, self._scope.cancel)

    def _stop_waiting(self) -> None:
        if self._left is not None:
            self._left.cancel()
            self._left = None
            self._calls.count_left(self.chat, -1)

    async def run(self, work: Callable[[RunningCall], Awaitable[Answer]]) -> None:
        """The whole life of the call, in its task."""
        try:
            with self._scope:
                self._answer = await work(self)
        except Exception as error:
            if not self._followers:
                log.exception("a tool failed, and nobody waits for it", extra={"tool": self.tool})
            self.failure = error
        finally:
            self._stop_waiting()
            if self._expiry is not None:
                self._expiry.cancel()
            self.is_done = True
            self._settle()
            self.begun.set()
            for tell in (*self._ends, *self._requests):
                tell()
            self._ends.clear()
            self._requests.clear()
            self._kept = Cap(0)
            self._tell_watchers()


def _so_far(kept: Cap) -> Answer:
    printed = (TextContent(kept.text()),) if kept.characters else ()
    return Answer((*printed, TextContent(_GOES_ON)), error=True)


class RunningCalls:
    """All calls that run, bounded. Its block ends those that are left."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self._calls: dict[str, RunningCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_tenants: Counter[str] = Counter()
        self._of_chats: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self.draining = False
        """The service is about to stop: what runs goes on, and clients are asked not to begin more."""
        self.stopping = False
        """The service stops: what runs in a sandbox goes on there."""

    async def __aenter__(self) -> Self:
        return self

    @property
    def followed(self) -> int:
        """Calls that somebody waits for."""
        return sum(call.is_followed for call in self._calls.values())

    async def drain(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until nobody waits for a call any more, at most this long; then for commands that are being started."""
        self.draining = True
        await _until(lambda: not self.followed or is_over(), seconds)
        await _until(lambda: not any(call.step == "starts" for call in self._calls.values()), _START_SECONDS)

    def stop(self, coming_back: Collection[str] = ()) -> None:
        """Tell everybody who follows a call what becomes of it. `coming_back`: the ids of those whose clients ask the
        next service."""
        if not self.stopping:
            self.draining = self.stopping = True
            for call in list(self._calls.values()):
                call.part(comes_back=call.id in coming_back)

    async def __aexit__(self, *exception: object) -> None:
        self.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def start(
        self,
        chat: Chat,
        tool: str,
        work: Callable[[RunningCall], Awaitable[Answer]],
        *,
        id: str = "",
        outlives: bool = False,
        grace: float = 0.0,
    ) -> RunningCall:
        """Begin a call. Whoever starts it follows it before he awaits anything else. Raises Busy."""
        if self.stopping:
            raise Busy(_NOT_BEGUN)
        if (
            len(self._calls) >= MAX_CALLS
            or self._of_tenants[chat.tenant] >= MAX_CALLS_OF_A_TENANT
            or self._of_chats[chat.digest] >= MAX_CALLS_OF_A_CHAT
        ):
            raise Busy("Too many calls run already. Try again when some of them are done.")
        call = RunningCall(self, id or secrets.token_hex(8), chat, tool, outlives=outlives, grace=grace)
        self._calls[call.id] = call
        self._count(self._of_tenants, chat.tenant, 1)
        self._count(self._of_chats, chat.digest, 1)
        task = start_task(self._run(call, work), name=f"call of {tool}")
        self._tasks.add(task)
        call.on_end(lambda: self._tasks.discard(task))
        return call

    def find(self, chat: Chat, id: str) -> RunningCall | None:
        """A call of this chat that runs."""
        call = self._calls.get(id)
        return call if call is not None and call.chat == chat else None

    def may_be_left(self, chat: Chat) -> bool:
        """Whether one more call of the chat may go on without anybody who follows it."""
        return self._left[chat.tenant] < MAX_LEFT_OF_A_TENANT and self._left[chat.digest] < MAX_LEFT_OF_A_CHAT

    def count_left(self, chat: Chat, by: int) -> None:
        self._count(self._left, chat.tenant, by)
        self._count(self._left, chat.digest, by)

    async def _run(self, call: RunningCall, work: Callable[[RunningCall], Awaitable[Answer]]) -> None:
        try:
            if current.get() is None:  # the newer era: its requests come from a task of the SDK
                chat = call.chat
                await metered(call.run(work), self._queue, LoopShare(chat.tenant, chat.id), begun=True)
            else:
                await call.run(work)
        finally:
            if self._calls.get(call.id) is call:
                del self._calls[call.id]
            self._count(self._of_tenants, call.chat.tenant, -1)
            self._count(self._of_chats, call.chat.digest, -1)
            if not call.is_followed and not call.cancelled:
                log.info("a call ended that nobody followed", extra=chat_fields(call.chat) | {"tool": call.tool})

    @staticmethod
    def _count(counter: Counter[str], name: str, by: int) -> None:
        counter[name] += by
        if not counter[name]:
            del counter[name]


async def _until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until this holds, at most so long."""
    ends = time.monotonic() + seconds
    while not holds() and time.monotonic() < ends:  # noqa: ASYNC110 — of many calls, each with events of its own
        await asyncio.sleep(_LOOK_SECONDS)
