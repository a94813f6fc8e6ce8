"""Calls that a service before this one left: those that run wait for their callers, and are ended after a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import Busy, FairSlots
from cubicle.journal.format import Entry
from cubicle.journal.journal import Journal
from cubicle.log import chat_fields
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.mcp_api.repeated_calls import DETACHED, INTERRUPTED, RepeatedCalls
from cubicle.tasks import start_task
from cubicle.tools.base import run_name
from cubicle.tools.registry import UnknownTool

log = logging.getLogger(__name__)

_MAX_CALLS = 64
"""Of one chat; older ones are only noted as interrupted."""
_LOOK_SECONDS = 30.0
"""For the calls of one chat: a sandbox may be silent."""
_PAUSES = (30.0, 300.0)
"""Before a chat whose calls could not be found out about is looked at again."""
_STOPPED = "The service stopped before this call had an answer. Repeat it with the same key to go on with it."


class UnfinishedCalls:
    """Looks after each chat once, when its sandbox is connected to for the first time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: asyncio.Queue[tuple[Chat, Machine, int]] = asyncio.Queue()
        self._slots = FairSlots(total=32, of_tenant=16, of_chat=64)
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """A sandbox is up: a `SandboxService`."""
        if before := self._journal.take_before(chat):
            self._waiting.put_nowait((chat, machine, before))
        yield

    @asynccontextmanager
    async def looked_after(self, repeated: RepeatedCalls) -> AsyncIterator[None]:
        """Take them up while the block runs."""
        self._start(self._work(repeated), name="unfinished calls")
        try:
            yield
        finally:
            while tasks := set(self._tasks):
                for one in tasks:
                    one.cancel()
                await asyncio.wait(tasks)

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = start_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, repeated: RepeatedCalls) -> None:
        """Each chat by itself: what one sandbox does not say is in nobody else's way."""
        while True:
            chat, machine, before = await self._waiting.get()
            self._start(self._try(chat, machine, before, repeated), name="unfinished calls of a chat")

    async def _try(self, chat: Chat, machine: Machine, before: int, repeated: RepeatedCalls) -> None:
        for pause in (*_PAUSES, None):
            try:
                async with self._slots.hold(chat), asyncio.timeout(_LOOK_SECONDS):
                    await self._look(chat, machine, before, repeated)
                return
            except (SandboxError, OSError, Busy) as error:
                why = str(error) or type(error).__name__
                log.warning("the calls of a service before this one are not known: %s", why, extra=chat_fields(chat))
            except Exception:
                log.exception("the calls of a service before this one are not known", extra=chat_fields(chat))
            self._journal.put_back(chat, before)  # for the next connection to this sandbox, or for the next try
            if pause is None:
                return
            await asyncio.sleep(pause)
            if not (before := self._journal.take_before(chat)):
                return

    async def _look(self, chat: Chat, machine: Machine, before: int, repeated: RepeatedCalls) -> None:
        open_calls, detached = await self._journal.scan(chat, lambda entries: _left_behind(entries, before))
        left: list[Entry] = []
        for number, begin in enumerate(reversed(open_calls)):
            if repeated.taken_up(chat, begin) is not None:
                continue  # its caller was faster, or it was taken up at the first try
            if (
                number >= _MAX_CALLS
                or not await _is_known(machine, begin)
                or not _take_up(repeated, chat, begin, detached)
            ):
                left.append(begin)
        if left:
            self._start(self._note(chat, left, repeated), name="interrupted calls of a chat")

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


def unfinished(entries: Iterable[Entry], before: int) -> list[Entry]:
    """The calls that have no end, of those up to this number; one that was begun again counts from there."""
    found: dict[str, Entry] = {}
    for entry in entries:
        call = str(entry.fields.get("call") or "")
        if entry.kind == "call" and entry.number <= before and call:
            found[call] = entry
        elif entry.kind == "end":
            found.pop(call, None)
    return list(found.values())


def _left_behind(entries: Iterable[Entry], before: int) -> tuple[list[Entry], Collection[str]]:
    """The unfinished calls, and the ids of calls whose callers were told that they go on. May block."""
    detached: set[str] = set()

    def noted() -> Iterator[Entry]:
        for entry in entries:
            if entry.kind == DETACHED:
                detached.add(str(entry.fields.get("call")))
            yield entry

    return unfinished(noted(), before), detached


async def _is_known(machine: Machine, begin: Entry) -> bool:
    """Whether it is a command, or an agent's run, that the sandbox can say something about."""
    id = str(begin.fields.get("command") or "").partition("@")[0] or str(begin.fields.get("call"))
    match begin.fields.get("tool"):
        case "bash_tool":
            pass
        case "sub_agent" if begin.fields.get("identity"):
            id = run_name(id)
        case _:
            return False
    try:
        await machine.look_for(id[:100])
    except MachineError:
        return False
    return True


def _take_up(repeated: RepeatedCalls, chat: Chat, begin: Entry, detached: Collection[str]) -> bool:
    try:
        call = repeated.take_up(chat, begin)
    except (Busy, UnknownTool):
        return False
    if begin.fields.get("call") in detached:
        call.outlives = True  # its caller was told that it goes on
    call.expect_followers()
    return True
