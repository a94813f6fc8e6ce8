"""A call that comes again is not done again: it joins the one that runs, gets the answer that the journal has, or goes
on with what a service before this one began.

OtherArguments   the same key was used for another call
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from cubicle.chat.access_watch import AccessOver, AccessWatch
from cubicle.core.arguments_hash import arguments_hash, is_large
from cubicle.core.call_identity import CallIdentity
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.journal.format import Entry
from cubicle.journal.lookup import KeptCall
from cubicle.log import chat_fields
from cubicle.mcp_api.kept_arguments import known_arguments, whole_arguments
from cubicle.mcp_api.request_ids import RequestIds
from cubicle.mcp_api.running_calls import CAN_GO_ON, RunningCall, RunningCalls
from cubicle.mcp_api.task_limits import TaskLimits, expires_at, first_begun, ttl_of
from cubicle.tools.base import Answer, Call, Tool, fail, say
from cubicle.tools.kept_answer import read_answer
from cubicle.tools.registry import Registry

log = logging.getLogger(__name__)

DETACHED = "detached"
"""The kind of an entry of the journal: the caller was told that the call goes on, and need not come back."""
INTERRUPTED = "interrupted"
"""The ending of a call that nobody came back for: it is not final, since the sandbox may know more of it."""
_TOO_LARGE = "This call was done before. Its answer was too large to be kept; look at what it left behind."


class OtherArguments(Exception):
    """The same key was used for another call."""

    def __init__(self) -> None:
        super().__init__(
            "This idempotency key was used for a call with another tool or other arguments, or for one that is no "
            "task. Make a new key."
        )


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A call that runs, or ran, as an MCP task."""

    identity: str


@dataclass(frozen=True, slots=True)
class _Repeatable:
    call: RunningCall
    hash: str


class RepeatedCalls:
    """Starts every tool call, once."""

    def __init__(
        self,
        registry: Registry,
        calls: RunningCalls,
        resume_seconds: float,
        boot: str,
        request_ids: RequestIds,
        watch: AccessWatch | None = None,
    ) -> None:
        self._registry = registry
        self._journal = registry.journal
        self._calls = calls
        self.resume_seconds = resume_seconds
        self._boot = boot
        self._request_ids = request_ids
        self._watch = watch
        self._tasks = TaskLimits()
        self._running: dict[tuple[str, str], _Repeatable] = {}

    async def start(
        self,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        identity: CallIdentity | None,
        *,
        id: str = "",
        ttl: int | None = None,
    ) -> RunningCall:
        """Begin a call, or join the one that it repeats. Whoever starts it follows it before he awaits anything else.
        One with a `ttl` is a task, and has an identity.

        Raises OtherArguments and Busy; the call itself may raise OtherArguments as well.
        """
        hash = await hash_arguments(tool.name, arguments)
        if identity is None or not self.counts(caller.chat, identity):
            return self._calls.start(
                caller.chat,
                tool.name,
                lambda running: self._run(
                    running,
                    tool,
                    Call(caller, id=running.id, command=f"@{self._boot}", arguments_hash=hash),
                    arguments,
                ),
                id=id,
                outlives=tool.outlives_caller,
            )
        before = self.running(caller.chat, identity.text)
        if before is not None and before.hash == hash and (ttl is None or before.call.task):
            return before.call
        if before is not None:
            self._is_another(caller.chat, identity)
        if ttl is not None:
            self._tasks.require_room(caller.chat)
        call = self._calls.start(
            caller.chat,
            tool.name,
            lambda running: self._once(running, caller, tool, arguments, identity, hash, ttl),
            id=id,
            outlives=tool.outlives_caller,
            grace=self.resume_seconds if identity.strict else 0.0,
        )
        if ttl is not None:
            self._tasks.add(call, identity.text, time.time() + ttl)
        return self._register(identity.text, hash, call)

    def counts(self, chat: Chat, identity: CallIdentity) -> bool:
        """Whether no two calls have this identity, as far as is known."""
        return self._request_ids.are_unique(chat.tenant, identity.session)

    def _is_another(self, chat: Chat, identity: CallIdentity) -> None:
        """Another call has the same identity. Raises OtherArguments if that cannot be."""
        if identity.strict:
            raise OtherArguments
        self._request_ids.note_reuse(chat.tenant, identity.session)

    def running(self, chat: Chat, identity: str) -> _Repeatable | None:
        """The call of this identity that runs."""
        return self._running.get((chat.digest, identity))

    async def left_behind(self, chat: Chat, id: str, identity: str) -> RunningCall | Answer | KnownTask | None:
        """A call that a service before this one began, by its id: it goes on, has its answer, or is not known."""
        if (call := self._calls.find(chat, id)) is not None:
            return KnownTask(call.task) if call.task else call
        kept = await self._find(chat, identity)
        if kept is None or kept.begin.fields.get("call") != id:
            kept = await self._look_for(chat, id)
        if kept is None:
            return None
        if ttl_of(kept.begin) is not None:
            return KnownTask(str(kept.begin.fields.get("identity")))
        if kept.end is not None and kept.end.fields.get("ending") != INTERRUPTED:
            return await read_answer(self._journal, chat, kept.end.fields)
        if (call := self._calls.find(chat, id)) is not None:
            return call  # it was taken up while the journal was read
        return self._asked_again(chat, kept.begin)

    def _asked_again(self, chat: Chat, begin: Entry) -> RunningCall | None:
        """Go on with a call, or have the sandbox say what became of it; None if nobody can tell."""
        if begin.fields.get("tool") in CAN_GO_ON:
            return self.take_up(chat, begin)
        arguments = whole_arguments(begin.fields)
        if arguments is None or not begin.fields.get("identity"):
            return None
        return self.take_up(chat, begin, arguments)  # a file that was changed is not changed again

    async def _look_for(self, chat: Chat, id: str) -> KeptCall | None:
        """By its own id, for a call whose identity is not at hand."""
        try:
            return await self._journal.scan(chat, lambda entries: _call_of(entries, id))
        except OSError as error:
            log.error("the journal cannot be asked for a call: %s", error, extra=chat_fields(chat))
            return None

    def _register(self, identity: str, hash: str, call: RunningCall) -> RunningCall:
        key = (call.chat.digest, identity)
        mine = self._running[key] = _Repeatable(call, hash)

        def forget() -> None:
            if self._running.get(key) is mine:
                del self._running[key]

        call.on_end(forget)
        return call

    async def _once(
        self,
        running: RunningCall,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        identity: CallIdentity,
        hash: str,
        ttl: int | None,
    ) -> Answer:
        kept = await self._find(caller.chat, identity.text)
        if kept is not None and not _is_same(kept.begin, hash, ttl):
            self._is_another(caller.chat, identity)
            kept = None
        if kept is not None and kept.end is not None and _was_ended(kept.end) and not identity.strict:
            kept = None  # its caller left, and comes back without having said that he would: it is a new call
        if kept is not None and kept.end is not None and kept.end.fields.get("begun") is False:
            kept = None  # it was refused before anything of it was done
        if kept is not None and kept.end is not None and _is_final(kept.end):
            answer = await read_answer(self._journal, caller.chat, kept.end.fields) or _without(tool, kept.end)
            if answer is not None:
                return answer
            kept = None
        call = Call(
            caller,
            id=running.id,
            identity=identity.text,
            chosen=identity.chosen,
            command=f"{identity.command(caller.chat, hash) if identity.strict else ''}@{self._boot}",
            arguments_hash=hash,
            ttl=ttl,
        )
        if kept is not None:
            call = self._as_begun(call, kept.begin)
            self._go_on_as_task(running, identity.text, kept.begin)
        return await self._run(running, tool, call, arguments)

    def taken_up(self, chat: Chat, begin: Entry) -> RunningCall | None:
        """The call that goes on with this one, if there is one."""
        if (known := self.running(chat, str(begin.fields.get("identity") or ""))) is not None:
            return known.call
        return self._calls.find(chat, str(begin.fields.get("call")))

    def take_up(self, chat: Chat, begin: Entry, arguments: Mapping[str, Any] | None = None) -> RunningCall:
        """Go on with a call of bash_tool or sub_agent that a service before this one began, and that the sandbox knows;
        with a call of any tool, if all its arguments are known. Nobody follows it yet."""
        fields = begin.fields
        tool = self._registry.find(str(fields.get("tool")))
        identity = str(fields.get("identity") or "")
        if (known := self.taken_up(chat, begin)) is not None:
            return known
        hash = str(fields.get("arguments_hash") or "")
        call = self._as_begun(Call(Caller(chat, name=str(fields.get("user") or "")), identity=identity), begin)
        call = replace(call, only_known=arguments is None, arguments_hash=hash)
        given = known_arguments(fields) if arguments is None else arguments
        running = self._calls.start(
            chat,
            tool.name,
            lambda running: self._run(running, tool, call, given),
            id=call.id,
            outlives=tool.outlives_caller,
            grace=self.resume_seconds,
        )
        self._go_on_as_task(running, identity, begin)
        if identity:
            self._register(identity, hash, running)
        return running

    def _go_on_as_task(self, running: RunningCall, identity: str, begin: Entry) -> None:
        """If it was begun as one: it goes on without followers, until it expires."""
        if (expires := expires_at(begin)) is not None:
            running.outlives = True
            self._tasks.add(running, identity, expires)

    async def _run(self, running: RunningCall, tool: Tool, call: Call, arguments: Mapping[str, Any]) -> Answer:
        leaves = bool(call.identity) or tool.outlives_caller or tool.name in CAN_GO_ON
        running.on_detached = lambda: self._journal.record(call.caller.chat, DETACHED, {"call": call.id})
        call.report, call.ask = running.report, running.input.ask
        call.heard = lambda: running.is_followed
        call.cancelled = lambda: running.cancelled
        call.reached = lambda step: setattr(running, "step", step)
        call.leaving = lambda: leaves and self._calls.stopping and not running.cancelled
        # The first step of `run` records the call: what is called soon comes after it.
        asyncio.get_running_loop().call_soon(running.begun.set)
        identity = call.caller.identity
        if self._watch is None or identity is None:
            return await self._registry.run(tool, call, arguments)
        # A token that expires ends the request only: its client comes back with a new one. Not what is revoked.
        lasting = replace(identity, expires=None) if identity.expires is not None else identity
        try:
            watched = self._watch.begin(lasting, running.end)
        except AccessOver:
            running.cancel()
            await anyio.sleep_forever()
            raise
        try:
            return await self._registry.run(tool, call, arguments)
        finally:
            self._watch.done(watched)

    def _as_begun(self, call: Call, begin: Entry) -> Call:
        """The same call, as a service before this one began it."""
        command = str(begin.fields.get("command") or "")
        same_boot = command.partition("@")[2] == self._boot != ""
        id = str(begin.fields.get("call") or call.id)
        return replace(call, id=id, command=command, begun=first_begun(begin), same_boot=same_boot, ttl=ttl_of(begin))

    async def _find(self, chat: Chat, identity: str) -> KeptCall | None:
        try:
            return await self._journal.find_call(chat, identity)
        except OSError as error:  # the sandbox knows what was begun
            log.error("the journal cannot be asked for a call: %s", error, extra=chat_fields(chat))
            return None


def _call_of(entries: Iterable[Entry], id: str) -> KeptCall | None:
    """The call of this id. May block."""
    begin = end = None
    for entry in entries:
        if entry.fields.get("call") == id:
            begin = begin or (entry if entry.kind == "call" else None)
            end = entry if entry.kind == "end" else end
    return KeptCall(begin, end) if begin is not None else None


def _is_same(begin: Entry, hash: str, ttl: int | None) -> bool:
    """Whether it is the call that was begun. A task may be asked for as a plain call, but not the other way round."""
    return begin.fields.get("arguments_hash") == hash and (ttl is None or ttl_of(begin) is not None)


def _is_final(end: Entry) -> bool:
    """Whether nothing more can be known of it."""
    return end.fields.get("ending") != INTERRUPTED and end.fields.get("final") is not False


def _was_ended(end: Entry) -> bool:
    """Whether it was ended without an answer, by its caller."""
    return end.fields.get("ending") in ("cancelled", "disconnected") and end.fields.get("answer") is None


def _without(tool: Tool, end: Entry) -> Answer | None:
    """The answer of a call that ended without one, or whose answer is not kept; None: do it again, it only reads."""
    if end.fields.get("answer") is None and "shortened" not in end.fields:
        return fail(f"{end.fields.get('result') or 'The call was ended.'} It was not done again.")
    return None if tool.name == "view" else say(_TOO_LARGE)


async def hash_arguments(tool: str, arguments: Mapping[str, Any]) -> str:
    """A hash of a call's arguments; of large ones in a thread."""
    if is_large(arguments):
        return await asyncio.to_thread(arguments_hash, tool, arguments)
    return arguments_hash(tool, arguments)


def read_boot() -> str:
    """The host's boot; empty where it cannot be told. Blocks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""
