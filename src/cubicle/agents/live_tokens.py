"""Which agent tokens work now: those of the runs that go on, and of take-overs while a person's terminal is open.

What goes on is also a small record per chat, so that a service that was killed knows which runs to look for: the guest
says which of them still go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import TaskStatus

from cubicle import record
from cubicle.agents.agent_token import AgentToken, TokenSubject, check, issue, refusal
from cubicle.core.chat import Chat
from cubicle.guest.wire import ErrorCode
from cubicle.log import chat_fields
from cubicle.machine.errors import Gone, MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.record import BadRecord, Fields

log = logging.getLogger(__name__)

GRACE_SECONDS = 120.0
"""A take-over outlives the terminal by this: a page is loaded again, a network comes back, the service restarts."""
_MAX_RUNS = 16
_RUN = re.compile(r"[a-z0-9-]{1,64}")
_NEVER, _OPEN = 0.0, -1.0

NOT_A_TOKEN = "This address serves the agents of this sandbox only."  # noqa: S105 — a sentence


class TokenRefused(Exception):
    """The token does not work; the message says why."""


@dataclass(eq=False)
class _State:
    """One chat."""

    owners: dict[str, object] = field(default_factory=dict)
    """The runs that go on, each by whoever follows it."""
    recorded: dict[str, None] = field(default_factory=dict)
    """The runs on disk, oldest first: those, and those whose end nobody has seen."""
    terminals: int = 0
    terminal_until: float = 0.0
    closed_at: float = _NEVER
    """The date at which the last terminal was closed."""
    calls: dict[anyio.CancelScope, AgentToken] = field(default_factory=dict)

    @property
    def live(self) -> TokenSubject:
        return TokenSubject(frozenset(self.owners), math.inf if self.terminals else self.terminal_until)


class LiveTokens:
    """Issues tokens and checks them. One that ends takes the calls along that are under way with it."""

    def __init__(self, folder: Path, signing_key: bytes, *, max_seconds: float, grace: float = GRACE_SECONDS) -> None:
        """`max_seconds`: the longest run, by this host's clock: a guest that lies does not keep a token alive."""
        self._folder = folder
        self._key = signing_key
        self._max_seconds = max_seconds
        self._grace = grace
        self._states: dict[str, _State] = {}
        self._writing = asyncio.Lock()
        self.closing = False
        """The service stops: what is let go now goes on without it."""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(record.make_folder, self._folder)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.closing = True

    def issue(self, chat: Chat, given: AgentToken) -> str:
        return issue(self._key, chat, given)

    def check(self, chat: Chat, text: str) -> AgentToken:
        """The token that this text is. Raises TokenRefused."""
        given = check(self._key, chat, text, time.time()) if text else None
        if given is None:
            raise TokenRefused(NOT_A_TOKEN)
        if why := refusal(given, self._live(chat), time.monotonic()):
            raise TokenRefused(why)
        return given

    async def checked(self, chat: Chat, text: str) -> AgentToken:
        """As `check`, for the gateway, which may be in another process."""
        return self.check(chat, text)

    def holds(self, chat: Chat, given: AgentToken) -> bool:
        """Whether a token that was checked still works."""
        return not refusal(given, self._live(chat), time.monotonic())

    @contextmanager
    def using(self, chat: Chat, given: AgentToken) -> Iterator[anyio.CancelScope]:
        """What is done in the block ends when the token does."""
        state = self._state(chat)
        with anyio.CancelScope() as scope:
            state.calls[scope] = given
            try:
                yield scope
            finally:
                del state.calls[scope]

    @asynccontextmanager
    async def running(self, chat: Chat, run: str) -> AsyncIterator[None]:
        """The run's token works in this block. If the block ends without the run's end, that is looked for later."""
        owner = object()
        self._state(chat).recorded[run] = None
        self._begin(chat, run, owner)
        await self._save(chat)
        try:
            yield
        except Gone:
            self._suspend(chat, run, owner)
            raise
        except BaseException:
            if not self.closing:
                await self._end(chat, run)
            raise
        else:
            await self._end(chat, run)

    @asynccontextmanager
    async def terminal(self, chat: Chat) -> AsyncIterator[None]:
        """A person's terminal is open in this block."""
        state = self._state(chat)
        state.terminals += 1
        if state.terminals == 1:
            await self._save(chat)
        try:
            yield
        finally:
            state.terminals -= 1
            if not state.terminals:
                state.closed_at = time.time()
                self._keep_open(chat, state, self._grace)
                await self._save(chat)

    def expect_terminal(self, chat: Chat) -> None:
        """A person was offered a take-over: the terminal may take a moment to open."""
        state = self._state(chat)
        if not state.terminals:
            self._keep_open(chat, state, self._grace)

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """Follow the runs of a service before this one that still go on in this machine (see `SandboxServices`)."""
        await self._load(chat)
        async with anyio.create_task_group() as tasks:
            for run in list(self._state(chat).recorded):
                await tasks.start(self._follow, chat, machine, run)
            yield
            tasks.cancel_scope.cancel()

    async def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        state = self._states.pop(chat.digest, None)
        for scope in list(state.calls) if state is not None else ():
            scope.cancel()
        async with self._writing:
            await asyncio.to_thread(remove_record, self._folder, chat.digest)

    # ---- what goes on

    def _state(self, chat: Chat) -> _State:
        return self._states.setdefault(chat.digest, _State())

    def _live(self, chat: Chat) -> TokenSubject:
        state = self._states.get(chat.digest)
        return state.live if state is not None else TokenSubject()

    def _begin(self, chat: Chat, run: str, owner: object) -> None:
        self._state(chat).owners[run] = owner
        asyncio.get_running_loop().call_later(self._max_seconds, self._suspend, chat, run, owner)

    def _suspend(self, chat: Chat, run: str, owner: object) -> None:
        """Nobody follows the run now; it stays on disk, for whoever can look."""
        state = self._states.get(chat.digest)
        if state is not None and state.owners.get(run) is owner:
            del state.owners[run]
            self._changed(state)

    async def _end(self, chat: Chat, run: str) -> None:
        state = self._state(chat)
        state.owners.pop(run, None)
        state.recorded.pop(run, None)
        self._changed(state)
        await self._save(chat)

    def _keep_open(self, chat: Chat, state: _State, seconds: float) -> None:
        state.terminal_until = time.monotonic() + seconds
        asyncio.get_running_loop().call_later(seconds + 0.01, self._changed, state)

    def _changed(self, state: _State) -> None:
        live, now = state.live, time.monotonic()
        for scope, given in list(state.calls.items()):
            if refusal(given, live, now):
                scope.cancel()

    async def _follow(self, chat: Chat, machine: Machine, run: str, *, task_status: TaskStatus[None]) -> None:
        owner, taken = object(), False
        try:
            async with machine.attach(run) as process:
                self._begin(chat, run, owner)
                task_status.started()
                await process.wait()
            await self._end(chat, run)
        except MachineError as error:
            taken = error.code == ErrorCode.TAKEN  # by a call that resumes the session, and follows it from now on
            if error.code == ErrorCode.NOT_FOUND:
                await self._end(chat, run)
        except SandboxError:
            pass  # the machine is gone: whether the run is, the next look says
        finally:
            if not taken:
                self._suspend(chat, run, owner)
            with suppress(RuntimeError):
                task_status.started()  # for whoever waits, if it was not said before

    # ---- records

    async def _load(self, chat: Chat) -> None:
        found = await asyncio.to_thread(_read, self._folder / chat.digest, chat)
        state = self._state(chat)
        state.recorded = {**dict.fromkeys(found.runs), **state.recorded}
        since = 0.0 if found.closed_at == _OPEN else max(0.0, time.time() - found.closed_at)
        if not state.terminals and found.closed_at != _NEVER and since < self._grace:
            self._keep_open(chat, state, self._grace - since)

    async def _save(self, chat: Chat) -> None:
        """Write what goes on; without room on the disk it is known until the service ends."""
        with anyio.CancelScope(shield=True):
            async with self._writing:
                state = self._states.get(chat.digest)
                if state is None:
                    return  # removed meanwhile
                while len(state.recorded) > _MAX_RUNS:
                    del state.recorded[next(iter(state.recorded))]
                closed_at = _OPEN if state.terminals else state.closed_at
                fields = {"runs": list(state.recorded), "terminal_closed_at": closed_at}
                try:
                    await asyncio.to_thread(record.write, self._folder / chat.digest, fields)
                except OSError as error:
                    log.warning("which agents run is not on disk: %s", error.strerror, extra=chat_fields(chat))


@dataclass(frozen=True, slots=True)
class _Found:
    runs: tuple[str, ...] = ()
    closed_at: float = _NEVER


def _read(path: Path, chat: Chat) -> _Found:
    try:
        return _parse(record.read(path))
    except FileNotFoundError:
        return _Found()
    except (OSError, BadRecord) as error:
        log.error("the record of running agents cannot be read and is set aside: %s", error, extra=chat_fields(chat))
        with suppress(OSError):
            record.keep_bad(path)
        return _Found()


def _parse(fields: Fields) -> _Found:
    runs = tuple(run for run in fields.texts("runs")[:_MAX_RUNS] if _RUN.fullmatch(run))
    return _Found(runs, fields.number("terminal_closed_at"))


def remove_record(folder: Path, digest: str) -> None:
    """Also one that was set aside."""
    for path in (folder / digest, *folder.glob(f"{digest}.bad-*")):
        with suppress(OSError):
            record.remove(path)
