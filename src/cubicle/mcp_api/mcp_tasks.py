"""Tool calls that run as MCP tasks: a client starts one, and asks later how it goes and what it answered.

A task is a call whose identity is the id of the task, so the journal holds all that there is to know of it, and a
service that was restarted goes on with it. It belongs to one chat. Its id says when it expires.

NoSuchTask    no task of this chat has the id, or it has expired
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cubicle.core.call_identity import CallIdentity, is_task, task_identity
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import Busy
from cubicle.journal.format import Entry
from cubicle.journal.journal import Journal
from cubicle.mcp_api.repeated_calls import CAN_GO_ON, INTERRUPTED, RepeatedCalls
from cubicle.mcp_api.running_calls import RunningCall
from cubicle.tools.base import Answer, Tool
from cubicle.tools.kept_answer import read_answer

MAX_RUNNING_OF_A_CHAT = 32
MAX_RUNNING_OF_A_TENANT = 256
MAX_LISTED = 100
"""Tasks in one answer."""
_MAX_ENTRIES = 100_000
_ID = re.compile(r"[0-9a-f]{32}-([0-9a-f]{1,10})", re.ASCII)
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
        self._running: Counter[str] = Counter()

    @property
    def are_offered(self) -> bool:
        """A task that is not on disk would be lost by a restart."""
        return self._journal.keeps

    async def start(
        self,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        identity: CallIdentity | None,
        seconds: float | None,
    ) -> tuple[str, RunningCall]:
        """Begin a call as a task that is kept for so long: its id, and the call. When it returns, it is on disk.

        Raises Busy and OtherArguments.
        """
        chat = caller.chat
        if self._running[chat.tenant] >= MAX_RUNNING_OF_A_TENANT or self._running[chat.digest] >= MAX_RUNNING_OF_A_CHAT:
            raise Busy("Too many tasks run already. Wait until some of them are done, or cancel them.")
        ttl = max(1, min(self._max_seconds, int(seconds) if seconds is not None else self._max_seconds))
        name = _name(chat, identity) if identity is not None and identity.chosen else secrets.token_hex(16)
        id = f"{name}-{ttl:x}"
        strict = identity is not None and identity.strict
        running = await self._calls.start(caller, tool, arguments, task_identity(id, strict=strict))
        self._count(chat, running, ttl)
        await running.begun.wait()
        await self._journal.settle(chat)
        return id, running

    def _count(self, chat: Chat, running: RunningCall, seconds: float) -> None:
        """Count it while it runs, and end it when it expires, in so many seconds."""
        names = (chat.tenant, chat.digest)
        self._running.update(names)
        expiry = asyncio.get_running_loop().call_later(seconds, running.cancel)

        def ended() -> None:
            expiry.cancel()
            for name in names:
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]

        running.on_end(ended)

    async def running(self, chat: Chat, id: str) -> RunningCall | None:
        """The call of a task that goes on; after a restart it is taken up again. Raises NoSuchTask."""
        ttl = _ttl(id)
        found = self._calls.running(chat, task_identity(id).text)
        if found is not None:
            return found.call
        kept = await self._journal.find_call(chat, task_identity(id).text)
        if kept is None or time.time() > kept.begin.at + ttl:
            raise NoSuchTask
        if kept.end is not None or kept.begin.fields.get("tool") not in CAN_GO_ON:
            return None
        found = self._calls.running(chat, task_identity(id).text)  # while the journal was read
        if found is not None:
            return found.call
        call = self._calls.take_up(chat, kept.begin)
        self._count(chat, call, max(0.0, kept.begin.at + ttl - time.time()))
        return call

    async def state(self, chat: Chat, id: str) -> TaskState:
        """Raises NoSuchTask."""
        ttl = _ttl(id)
        running = await self.running(chat, id)
        kept = await self._journal.find_call(chat, task_identity(id).text)
        if kept is None or time.time() > kept.begin.at + ttl:
            raise NoSuchTask
        return await self._state(chat, id, ttl, kept.begin, kept.end, running is not None and not running.is_done)

    async def _state(
        self, chat: Chat, id: str, ttl: int, begin: Entry, end: Entry | None, is_running: bool
    ) -> TaskState:
        def state(status: Status, message: str, answer: Answer | None = None) -> TaskState:
            return TaskState(id, status, begin.at, (end or begin).at, ttl, message, answer)

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
            id, call = identity.partition(":")[2], str(begin.fields.get("call"))
            running = self._calls.running(chat, identity) is not None
            states.append(await self._state(chat, id, _ttl(id), begin, ends.get(call), running))
        return states, part[-1].number if len(tasks) > MAX_LISTED else None


def _tasks(entries: Sequence[Entry], before: int | None, now: float) -> tuple[Sequence[Entry], Mapping[str, Entry]]:
    """The starts of those that have not expired, newest first; the ends of all calls, by their ids."""
    found: dict[str, Entry] = {}
    ends: dict[str, Entry] = {}
    for entry in entries:
        identity = str(entry.fields.get("identity") or "")
        if entry.kind == "call" and is_task(identity) and (match := _ID.fullmatch(identity.partition(":")[2])):
            if (before is None or entry.number < before) and now <= entry.at + int(match[1], 16):
                found[identity] = entry
        elif entry.kind == "end":
            ends[str(entry.fields.get("call"))] = entry
    return sorted(found.values(), key=lambda entry: -entry.number), ends


def _ttl(id: str) -> int:
    match = _ID.fullmatch(id)
    if match is None:
        raise NoSuchTask
    return int(match[1], 16)


def _name(chat: Chat, identity: CallIdentity) -> str:
    """The same for a call that is repeated."""
    return hashlib.sha256("\0".join((chat.tenant, chat.id, identity.text)).encode()).hexdigest()[:32]
