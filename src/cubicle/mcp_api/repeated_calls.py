"""A call that comes again is not done again: it joins the one that runs, gets the answer that the journal has, or goes
on with what a service before this one began.

OtherArguments   the same key was used for another call
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cubicle.core.arguments_hash import arguments_hash
from cubicle.core.call_identity import CallIdentity
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.journal.format import Entry
from cubicle.journal.journal import KeptCall
from cubicle.log import chat_fields
from cubicle.mcp_api.running_calls import RunningCall, RunningCalls
from cubicle.tools.base import Answer, Call, Tool, fail, say
from cubicle.tools.kept_answer import read_answer
from cubicle.tools.registry import Registry

log = logging.getLogger(__name__)

INTERRUPTED = "interrupted"
"""The ending of a call that nobody came back for: it is not final, since the sandbox may know more of it."""
_LARGE = 1 << 20
_TOO_LARGE = "This call was done before. Its answer was too large to be kept; look at what it left behind."


class OtherArguments(Exception):
    """The same key was used for another call."""

    def __init__(self) -> None:
        super().__init__(
            "This idempotency key was used for a call with another tool or other arguments. Make a new key."
        )


@dataclass(frozen=True, slots=True)
class _Repeatable:
    call: RunningCall
    hash: str


class RepeatedCalls:
    """Starts every tool call, once."""

    def __init__(self, registry: Registry, calls: RunningCalls, resume_seconds: float, boot: str) -> None:
        self._registry = registry
        self._journal = registry.journal
        self._calls = calls
        self.resume_seconds = resume_seconds
        self._boot = boot
        self._running: dict[tuple[str, str], _Repeatable] = {}

    async def start(
        self, caller: Caller, tool: Tool, arguments: Mapping[str, Any], identity: CallIdentity | None, *, id: str = ""
    ) -> RunningCall:
        """Begin a call, or join the one that it repeats. Whoever starts it follows it before he awaits anything else.

        Raises OtherArguments and Busy; the call itself may raise OtherArguments as well.
        """
        if identity is None:
            return self._calls.start(
                caller.chat,
                tool.name,
                lambda running: self._run(
                    running, tool, Call(caller, id=running.id, command=f"@{self._boot}"), arguments
                ),
                id=id,
                outlives=tool.outlives_caller,
            )
        hash = await _hash(tool.name, arguments)
        before = self.running(caller.chat, identity.text)
        if before is not None and before.hash == hash:
            return before.call
        if before is not None and identity.strict:
            raise OtherArguments
        return self._register(
            identity.text,
            hash,
            self._calls.start(
                caller.chat,
                tool.name,
                lambda running: self._once(running, caller, tool, arguments, identity, hash),
                id=id,
                outlives=tool.outlives_caller,
                grace=self.resume_seconds if identity.chosen else 0.0,
            ),
        )

    def running(self, chat: Chat, identity: str) -> _Repeatable | None:
        """The call of this identity that runs."""
        return self._running.get((chat.digest, identity))

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
    ) -> Answer:
        kept = await self._find(caller.chat, identity.text)
        if kept is not None and kept.begin.fields.get("arguments_hash") != hash:
            if identity.strict:
                raise OtherArguments
            kept = None
        if kept is not None and kept.end is not None and kept.end.fields.get("ending") != INTERRUPTED:
            answer = await read_answer(self._journal, caller.chat, kept.end.fields) or _without(tool, kept.end)
            if answer is not None:
                return answer
            kept = None
        call = Call(
            caller,
            id=running.id,
            identity=identity.text,
            chosen=identity.chosen,
            command=f"{identity.command(caller.chat, hash)}@{self._boot}",
            arguments_hash=hash,
        )
        if kept is not None:
            call = self._taken_up(call, kept.begin)
        return await self._run(running, tool, call, arguments)

    def take_up(self, chat: Chat, begin: Entry) -> RunningCall:
        """Go on with a bash call that a service before this one began and the sandbox knows; nobody follows it yet."""
        fields = begin.fields
        tool = self._registry.find(str(fields.get("tool")))
        identity = str(fields.get("identity") or "")
        hash = str(fields.get("arguments_hash") or "")
        call = self._taken_up(Call(Caller(chat, name=str(fields.get("user") or "")), identity=identity), begin)
        call = replace(call, only_known=True, arguments_hash=hash)
        running = self._calls.start(
            chat,
            tool.name,
            lambda running: self._run(running, tool, call, _known_arguments(fields)),
            id=call.id,
            grace=self.resume_seconds,
        )
        if identity:
            self._register(identity, hash, running)
        return running

    async def _run(self, running: RunningCall, tool: Tool, call: Call, arguments: Mapping[str, Any]) -> Answer:
        leaves = bool(call.identity) or tool.outlives_caller
        call = replace(
            call,
            report=running.report,
            heard=lambda: running.is_followed,
            cancelled=lambda: running.cancelled,
            leaving=lambda: leaves and self._calls.stopping and not running.cancelled,
        )
        return await self._registry.run(tool, call, arguments)

    def _taken_up(self, call: Call, begin: Entry) -> Call:
        """The same call, as a service before this one began it."""
        command = str(begin.fields.get("command") or "")
        same_boot = command.partition("@")[2] == self._boot != ""
        id = str(begin.fields.get("call") or call.id)
        return replace(call, id=id, command=command, begun=begin.at, same_boot=same_boot)

    async def _find(self, chat: Chat, identity: str) -> KeptCall | None:
        try:
            return await self._journal.find_call(chat, identity)
        except OSError as error:  # the sandbox knows what was begun
            log.error("the journal cannot be asked for a call: %s", error, extra=chat_fields(chat))
            return None


def _without(tool: Tool, end: Entry) -> Answer | None:
    """The answer of a call that ended without one, or whose answer is not kept; None: do it again, it only reads."""
    if end.fields.get("answer") is None:
        return fail(f"{end.fields.get('result') or 'The call was ended.'} It was not done again.")
    return None if tool.name == "view" else say(_TOO_LARGE)


def _known_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a bash call, as the journal has them: texts, the longest of them cut."""
    kept = fields.get("arguments")
    arguments = (
        {name: value for name, value in kept.items() if isinstance(value, str)} if isinstance(kept, dict) else {}
    )
    try:
        timeout: float | None = float(arguments.pop("timeout", ""))
    except ValueError:
        timeout = None
    return {"command": "", **arguments, "description": "-"} | ({"timeout": timeout} if timeout else {})


async def _hash(tool: str, arguments: Mapping[str, Any]) -> str:
    if sum(len(value) for value in arguments.values() if isinstance(value, str)) > _LARGE:
        return await asyncio.to_thread(arguments_hash, tool, arguments)
    return arguments_hash(tool, arguments)


def read_boot() -> str:
    """The host's boot; empty where it cannot be told. Blocks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""
