"""Tool calls that run as MCP tasks: a client starts one, and asks later how it goes and what it answered.

A task is a call whose entry in the journal says when it expires. Its id stands for the identity of the call, so the
journal holds all that there is to know of it, and a service that was restarted goes on with it. It belongs to one chat.

NoSuchTask    no task of this chat has the id, or it has expired
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cubicle.core.call_identity import TASK, CallIdentity, task_identity, task_of
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.journal.format import Entry
from cubicle.journal.journal import Journal
from cubicle.journal.lookup import KeptCall
from cubicle.mcp_api.repeated_calls import INTERRUPTED, KnownTask, OtherArguments, RepeatedCalls, hash_arguments
from cubicle.mcp_api.running_calls import CAN_GO_ON, RunningCall
from cubicle.mcp_api.task_limits import expires_at, first_begun, ttl_of
from cubicle.tools.base import Answer, Tool
from cubicle.tools.kept_answer import read_answer
from cubicle.tools.questions import Question

MAX_LISTED = 100
"""Tasks in one answer."""
_LOST = "The service was restarted before the task had an answer, and the sandbox does not know how it ended."
_NOT_KEPT = "The answer of the task was too large to be kept; look at what it left behind."

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]


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
    reports_error: bool = False
    """It is completed, and its tool reports an error."""
    answer: Answer | None = None
    """Of one that is completed; a list has none."""
    questions: Mapping[str, Question] = field(default_factory=dict)
    """What it waits for, if it needs input."""


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
        may_ask: bool = False,
    ) -> AsyncIterator[tuple[str, RunningCall]]:
        """Begin a call as a task that is kept for so long, or join the one that it repeats: its id, and the call. It is
        on disk by then. Whoever leaves the block with an exception has told nobody of the task: it is then as with any
        call whose caller leaves. `may_ask`: its tool may ask the user of this client.

        Raises Busy and OtherArguments.
        """
        ttl = max(1, min(self._max_seconds, int(seconds) if seconds is not None else self._max_seconds))
        own = await self._own_identity(caller.chat, tool, arguments, identity)
        running = await self._calls.start(caller, tool, arguments, own, id=call_id, ttl=ttl)
        running.input.may_ask = running.input.may_ask or may_ask
        with running.followed(_unheard):
            await running.begun.wait()
            if isinstance(running.failure, OtherArguments):
                raise running.failure
            await self._journal.settle(caller.chat)
            yield task_of(own.text), running
            running.outlives = True

    async def _own_identity(
        self, chat: Chat, tool: Tool, arguments: Mapping[str, Any], identity: CallIdentity | None
    ) -> CallIdentity:
        """The client's own key; or one of the request and its arguments, as a repeat of it has them, too; else a new
        one. By its task a call is found for hours: where ids of requests come again, they name none."""
        if identity is not None and identity.chosen:
            return identity
        name = secrets.token_hex(16)
        if identity is not None and self._calls.counts(chat, identity):
            name = identity.command(chat, await hash_arguments(tool.name, arguments))
        return CallIdentity(f"{TASK}{name}")

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
        is_running = running is not None and not running.is_done
        if kept.end is None and not is_running:
            kept = await self._kept(chat, _identity(id))  # it may have ended while the journal was read
        state = await self._state(chat, id, kept, is_running)
        return _waiting(state, running)

    async def answer(self, chat: Chat, id: str, replies: Mapping[str, Any]) -> None:
        """Answers to questions of a task; those that are not open are left out. Raises NoSuchTask and BadReply."""
        running = await self.running(chat, id)
        if running is not None:
            running.input.answer(replies)

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

    async def _state(self, chat: Chat, id: str, kept: KeptCall, is_running: bool) -> TaskState:
        state = _outcome(id, kept.begin, kept.end, is_running)
        if state.status != "completed" or kept.end is None:
            return state
        answer = await read_answer(self._journal, chat, kept.end.fields)
        return replace(state, answer=answer) if answer is not None else _without_answer(state)

    async def cancel(self, chat: Chat, id: str) -> bool:
        """End a task, and wait until it has ended; whether it was running. Raises NoSuchTask."""
        running = await self.running(chat, id)
        if running is None or running.is_done:
            return False
        running.cancel()
        await running.wait()
        return True

    async def list(self, chat: Chat, before: int | None) -> tuple[Sequence[TaskState], int | None]:
        """The tasks of a chat without their answers, the newest first: those before this number, and the number of the
        next part."""
        now = time.time()
        found = await self._journal.scan(chat, lambda entries: _tasks(entries, before, now))
        part = found[:MAX_LISTED]
        states = []
        for listed in part:
            kept, identity = listed, str(listed.begin.fields.get("identity"))
            known = self._calls.running(chat, identity)
            if kept.end is None and known is None:  # it may have ended while the journal was read
                kept = await self._journal.find_call(chat, identity) or kept
            state = _outcome(task_of(identity), kept.begin, kept.end, known is not None)
            states.append(_waiting(state, known.call if known is not None else None))
        return states, part[-1].begin.number if len(found) > MAX_LISTED else None


def _outcome(id: str, begin: Entry, end: Entry | None, is_running: bool) -> TaskState:
    """How a task is, by what its entries say."""

    def state(status: Status, message: str = "", *, error: bool = False) -> TaskState:
        return TaskState(id, status, first_begun(begin), (end or begin).at, ttl_of(begin) or 0, message, error)

    if end is None:
        return state("working", f"{begin.fields.get('tool')} runs.") if is_running else state("failed", _LOST)
    fields = end.fields
    if fields.get("ending") == "cancelled":
        return state("cancelled", "The task was cancelled.")
    if fields.get("ending") == INTERRUPTED:
        return state("failed", _LOST)
    if "shortened" in fields:
        return state("failed", _NOT_KEPT)
    if fields.get("answer") is None:
        return state("failed", str(fields.get("result") or "") or "The task was ended.")
    return state("completed", error=fields.get("error") is True)


def _waiting(state: TaskState, running: RunningCall | None) -> TaskState:
    """The same; of one whose tool has asked something, what that is."""
    questions = running.input.open if running is not None else {}
    if state.status != "working" or not questions:
        return state
    return replace(state, status="input_required", message="An answer of the user is needed.", questions=questions)


def _without_answer(state: TaskState) -> TaskState:
    return replace(state, status="failed", message=_NOT_KEPT, reports_error=False)


def _tasks(entries: Iterable[Entry], before: int | None, now: float) -> Sequence[KeptCall]:
    """Those that have not expired, newest first: one part, and one more if there is another part. Of all the entries
    no more is kept than that. May block."""
    found: dict[str, Entry] = {}
    ends: dict[str, Entry | None] = {}
    for entry in entries:
        call = str(entry.fields.get("call"))
        if entry.kind == "call" and (expires := expires_at(entry)) is not None:
            if now <= expires and (before is None or entry.number < before):
                identity = str(entry.fields.get("identity"))
                found.pop(identity, None)
                found[identity], ends[call] = entry, None
                if len(found) > MAX_LISTED + 1:
                    ends.pop(str(found.pop(next(iter(found))).fields.get("call")), None)
        elif entry.kind == "end" and call in ends:
            ends[call] = entry
        elif entry.kind == "lifecycle" and entry.fields.get("what") == "removed":
            found.clear()
            ends.clear()
    calls = [KeptCall(begin, ends.get(str(begin.fields.get("call")))) for begin in found.values()]
    return calls[::-1]


def _identity(id: str) -> str:
    identity = task_identity(id)
    if identity is None:
        raise NoSuchTask
    return identity.text


def _unheard(_text: str) -> None:
    """Its output is for those who ask for it later."""
