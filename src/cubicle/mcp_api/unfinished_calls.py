"""Calls that a service before this one left: those that run wait for their callers, and are ended after a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import Busy
from cubicle.guest.wire import ErrorCode
from cubicle.journal.format import Entry
from cubicle.journal.journal import Journal
from cubicle.log import chat_fields
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.mcp_api.repeated_calls import INTERRUPTED, RepeatedCalls
from cubicle.tasks import start_task
from cubicle.tools.registry import UnknownTool

log = logging.getLogger(__name__)

_MAX_ENTRIES = 100_000
_MAX_CALLS = 64
"""Of one chat; older ones are only noted as interrupted."""
_STOPPED = "The service stopped before this call had an answer. Repeat it with the same key to go on with it."


class UnfinishedCalls:
    """Looks after each chat once, when its sandbox is connected to for the first time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: asyncio.Queue[tuple[Chat, Machine, int]] = asyncio.Queue()
        self._later: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """A sandbox is up: a `SandboxService`."""
        if before := self._journal.take_before(chat):
            self._waiting.put_nowait((chat, machine, before))
        yield

    @asynccontextmanager
    async def looked_after(self, repeated: RepeatedCalls) -> AsyncIterator[None]:
        """Take them up while the block runs."""
        task = start_task(self._work(repeated), name="unfinished calls")
        try:
            yield
        finally:
            tasks = {task, *self._later}
            for one in tasks:
                one.cancel()
            await asyncio.wait(tasks)

    async def _work(self, repeated: RepeatedCalls) -> None:
        while True:
            chat, machine, before = await self._waiting.get()
            try:
                await self._look(chat, machine, before, repeated)
            except (SandboxError, OSError) as error:
                log.warning("the calls of a service before this one are not known: %s", error, extra=chat_fields(chat))
            except Exception:
                log.exception("the calls of a service before this one are not known", extra=chat_fields(chat))

    async def _look(self, chat: Chat, machine: Machine, before: int, repeated: RepeatedCalls) -> None:
        entries = await self._journal.entries(chat, limit=_MAX_ENTRIES)
        open_calls = await asyncio.to_thread(unfinished, entries, before)
        left: list[Entry] = []
        for number, begin in enumerate(reversed(open_calls)):
            if repeated.running(chat, str(begin.fields.get("identity") or "")) is not None:
                continue  # its caller was faster
            if number >= _MAX_CALLS or not await _is_known(machine, begin) or not _take_up(repeated, chat, begin):
                left.append(begin)
        if left:
            task = start_task(self._note(chat, left, repeated), name="unfinished calls of a chat")
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _note(self, chat: Chat, left: Sequence[Entry], repeated: RepeatedCalls) -> None:
        """Nobody came back for these: the journal says so."""
        await asyncio.sleep(repeated.resume_seconds)
        for begin in left:
            identity = str(begin.fields.get("identity") or "")
            if identity:
                kept = await self._journal.find_call(chat, identity)
                same = kept is not None and kept.begin.fields.get("call") == begin.fields.get("call")
                if repeated.running(chat, identity) is not None or (same and kept is not None and kept.end is not None):
                    continue
            fields = {"call": begin.fields.get("call"), "seconds": 0.0, "ending": INTERRUPTED, "result": _STOPPED}
            self._journal.record(chat, "end", {**fields, "exit_code": None, "signal": "", "notes": [], "error": True})


def unfinished(entries: Sequence[Entry], before: int) -> list[Entry]:
    """The calls that have no end, of those up to this number; one that was begun again counts from there."""
    found: dict[str, Entry] = {}
    for entry in entries:
        call = str(entry.fields.get("call") or "")
        if entry.kind == "call" and entry.number <= before and call:
            found[call] = entry
        elif entry.kind == "end":
            found.pop(call, None)
    return list(found.values())


async def _is_known(machine: Machine, begin: Entry) -> bool:
    """Whether it is a command that the sandbox can say something about."""
    id = str(begin.fields.get("command") or "").partition("@")[0] or str(begin.fields.get("call"))
    if begin.fields.get("tool") != "bash_tool":
        return False
    try:
        async with machine.attach(id[:100]):
            return True
    except MachineError as error:
        return error.code is ErrorCode.INTERRUPTED


def _take_up(repeated: RepeatedCalls, chat: Chat, begin: Entry) -> bool:
    try:
        repeated.take_up(chat, begin).expect_followers()
    except (Busy, UnknownTool):
        return False
    return True
