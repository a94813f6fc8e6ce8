"""Tool calls that run as MCP tasks: a client starts one, and asks later how it goes and what it answered.

A task is a call whose entry in the journal says when it expires. Its id stands for the identity of the call, so the
journal holds all that there is to know of it, and a service that was restarted goes on with it. It belongs to one chat.

NoSuchTask    no task of this chat has the id, or it has expired
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from cubicle.core.call_identity import CallIdentity, task_identity, task_of
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.journal.format import Entry
from cubicle.journal.journal import Journal
from cubicle.journal.lookup import KeptCall
from cubicle.mcp_api.repeated_calls import INTERRUPTED, KnownTask, OtherArguments, RepeatedCalls
from cubicle.mcp_api.running_calls import CAN_GO_ON, RunningCall
from cubicle.mcp_api.task_limits import expires_at, first_begun, ttl_of
from cubicle.tools.base import Answer, Tool
from cubicle.tools.kept_answer import read_answer

MAX_LISTED = 100
"""Tasks in one answer."""
_MAX_ENTRIES = 100_000
_LOST = "The service was restarted before the task had an answer, and the sandbox does not know how it ended."
_NOT_KEPT = "The answer of the task was too large to be kept; look at what it left behind."

Status = Literal["working", "completed", "failed", "cancelled"]


class NoSuchTask(LookupError):
    """No task of this chat has the id, or it has expired."""

    def __init__(self) -> None:
        super().__init__("There is no such task in this chat, or it has expired.")


@dataclass(frozen=True, slots=True)
class TaskState:
    """How a task is just now."""

    id: str
    status: Status
    created: float
    updated: float
    """Both in Unix time."""
    ttl: int
    """Seconds after its start at which it expires."""
    message: str = ""
    answer: Answer | None = None


class McpTasks:
    """The tasks of all chats."""

    def __init__(self, calls: RepeatedCalls, journal: Journal, hours: float) -> None:
        self._calls = calls
        self._journal = journal
        self._max_seconds = int(hours * 3600)

    @property
    def are_offered(self) -> bool:
        """A task that is not on disk would be lost by a restart."""
        return self._journal.keeps

    @asynccontextmanager
    async def started(
        self,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        identity: CallIdentity | None,
        seconds: float | None,
        *,
        call_id: str = "",
    ) -> AsyncIterator[tuple[str, RunningCall]]:
        """Begin a call as a task that is kept for so long, or join the one that it repeats: its id, and the call. It is
        on disk by then. Whoever leaves the block with an exception has told nobody of the task: it is then as with any
        call whose caller leaves.

        Raises Busy and OtherArguments.
        """
        ttl = max(1, min(self._max_seconds, int(seconds) if seconds is not None else self._max_seconds))
        own = identity if identity is not None and identity.chosen else None
        own = own or task_identity(secrets.token_hex(16))
        assert own is not None
        running = await self._calls.start(caller, tool, arguments, own, id=call_id, ttl=ttl)
        with running.followed(_unheard):
            await running.begun.wait()
            if isinstance(running.failure, OtherArguments):
                raise running.failure
            await self._journal.settle(caller.chat)
            yield task_of(own.text), running
            running.outlives = True

    async def running(self, chat: Chat, id: str) -> RunningCall | None:
        """The call of a task that goes on; after a restart it is taken up again. Raises NoSuchTask."""
        identity = _identity(id)
        if (found := self._calls.running(chat, identity)) is not None and found.call.task:
            return found.call
        kept = await self._kept(chat, identity)
        if kept.end is not None or kept.begin.fields.get("tool") not in CAN_GO_ON:
            return None
        return self._calls.take_up(chat, kept.begin)

    async def state(self, chat: Chat, id: str) -> TaskState:
        """Raises NoSuchTask."""
        running = await self.running(chat, id)
        kept = await self._kept(chat, _identity(id))
        return await self._state(chat, id, kept.begin, kept.end, running is not None and not running.is_done)

    async def left_behind(self, chat: Chat, id: str, identity: str) -> RunningCall | Answer | TaskState | None:
        """As that of RepeatedCalls, with the state of a task."""
        found = await self._calls.left_behind(chat, id, identity)
        if not isinstance(found, KnownTask):
            return found
        try:
            return await self.state(chat, task_of(found.identity))
        except NoSuchTask:
            return None

    async def _kept(self, chat: Chat, identity: str) -> KeptCall:
        """What the journal has of a task. Raises NoSuchTask."""
        kept = await self._journal.find_call(chat, identity)
        expires = expires_at(kept.begin) if kept is not None else None
        if kept is None or expires is None or time.time() > expires:
            raise NoSuchTask
        return kept

    async def _state(self, chat: Chat, id: str, begin: Entry, end: Entry | None, is_running: bool) -> TaskState:
        def state(status: Status, message: str, answer: Answer | None = None) -> TaskState:
            return TaskState(id, status, first_begun(begin), (end or begin).at, ttl_of(begin) or 0, message, answer)

        if end is None:
            return state("working", f"{begin.fields.get('tool')} runs.") if is_running else state("failed", _LOST)
        ending, result = end.fields.get("ending"), str(end.fields.get("result") or "")
        if ending == "cancelled":
            return state("cancelled", "The task was cancelled.")
        if ending == INTERRUPTED:
            return state("failed", _LOST)
        if end.fields.get("answer") is None and "shortened" not in end.fields:
            return state("failed", result or "The task was ended.")
        answer = await read_answer(self._journal, chat, end.fields)
        return state("completed", "", answer) if answer is not None else state("failed", _NOT_KEPT)

    async def cancel(self, chat: Chat, id: str) -> bool:
        """End a task, and wait until it has ended; whether it was running. Raises NoSuchTask."""
        running = await self.running(chat, id)
        if running is None or running.is_done:
            return False
        running.cancel()
        await running.wait()
        return True

    async def list(self, chat: Chat, before: int | None) -> tuple[Sequence[TaskState], int | None]:
        """The tasks of a chat, the newest first: those before this number, and the number of the next part."""
        entries = await self._journal.entries(chat, limit=_MAX_ENTRIES)
        tasks, ends = await asyncio.to_thread(_tasks, entries, before, time.time())
        part = tasks[:MAX_LISTED]
        states = []
        for begin in part:
            identity = str(begin.fields.get("identity"))
            end = ends.get(str(begin.fields.get("call")))
            running = self._calls.running(chat, identity) is not None
            states.append(await self._state(chat, task_of(identity), begin, end, running))
        return states, part[-1].number if len(tasks) > MAX_LISTED else None


def _tasks(entries: Sequence[Entry], before: int | None, now: float) -> tuple[Sequence[Entry], Mapping[str, Entry]]:
    """The starts of those that have not expired, newest first; the ends of all calls, by their ids."""
    found: dict[str, Entry] = {}
    ends: dict[str, Entry] = {}
    for entry in entries:
        if entry.kind == "call" and (expires := expires_at(entry)) is not None:
            if (before is None or entry.number < before) and now <= expires:
                found[str(entry.fields.get("identity"))] = entry
        elif entry.kind == "end":
            ends[str(entry.fields.get("call"))] = entry
    return sorted(found.values(), key=lambda entry: -entry.number), ends


def _identity(id: str) -> str:
    identity = task_identity(id)
    if identity is None:
        raise NoSuchTask
    return identity.text


def _unheard(_text: str) -> None:
    """Its output is for those who ask for it later."""
