"""One chat's place in the fleet."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from cubicle.core.chat import Chat
from cubicle.guest.operations import Usage
from cubicle.machine.errors import StartFailed
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import State

_MAX_FAILED = 200
"""Chats without a sandbox of which is kept why they got none."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What an operator sees of one sandbox."""

    chat: Chat | None
    digest: str
    name: str
    state: State
    reason: str
    leases: int
    idle_seconds: float
    age_seconds: float | None
    """Since the chat's first call, if that was written down."""


@dataclass(eq=False)
class Rest:
    """How far down the idle ladder a sandbox is (idle_ladder.py)."""

    frozen: bool = False
    """It is halted, or about to be."""
    given_back: bool = False
    """So is its memory."""
    usage: Usage | None = None
    """What it used when it was frozen."""
    measured: float = 0.0
    """When that was asked."""
    uses: int = 0
    """Leases and looks under way."""
    since: float = field(default_factory=time.monotonic)
    """When the last one ended."""
    turning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is frozen or let run on."""


@dataclass(eq=False)
class Slot:
    """The sandbox of one chat: which one, how it is, who uses it."""

    digest: str
    chat: Chat | None = None
    name: str = ""
    machine: Machine | None = None
    state: State = State.STOPPED
    reason: str = ""
    given_up: bool = False
    """It did not answer for so long that it is to be started anew."""
    started: bool = False
    """It was started, and no machine of it was used since: one that loads slowly may be connected to much later."""
    made: bool = False
    """It was made by the last start."""
    leases: int = 0
    held: int = 0
    """Reads under way that are no use, and are not to be cut off by the idle limit."""
    last_used: float = 0.0
    """The reading of the service clock at the last use."""
    since: float | None = None
    """The date of the chat's first call, if that was written down."""
    rest: Rest = field(default_factory=Rest)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    starting: asyncio.Task[Machine | StartFailed] | None = None

    @property
    def live(self) -> Machine | None:
        """The machine, if it can be used right now."""
        return self.machine if self.machine is not None and self.machine.alive else None

    @property
    def why_down(self) -> str:
        """Why it cannot be looked at now, for people."""
        if self.starting is not None:
            return "The sandbox of this chat is starting."
        state, reason = self.condition
        if state is State.FAILED:
            return f"The sandbox of this chat failed. {reason}".strip()
        return f"The sandbox of this chat is stopped; its files are kept. {reason}".strip()

    def say_stopped(self, reason: str) -> None:
        """Whoever uses the machine now is told that it is stopped on purpose, and why."""
        if self.machine is not None:
            self.machine.stopped = reason

    @property
    def in_use(self) -> bool:
        """Whether somebody uses it, or something is being done with it."""
        return bool(self.leases or self.held or self.starting or self.lock.locked())

    def hang_up(self) -> None:
        """Let go of the connection."""
        self.rest.frozen = False
        if self.machine is not None:
            self.given_up = self.machine.given_up
            self.machine.close()
            self.machine = None

    @property
    def key(self) -> str:
        """By what the clock remembers its last use: a chat that was removed and came back is another one."""
        return f"{self.digest}/{self.since}"

    @property
    def condition(self) -> tuple[State, str]:
        """Its state now, and why it is in that state."""
        state, reason = self.state, self.reason
        if state is State.RUNNING and self.machine is not None and not self.machine.alive:
            state = State.FAILED if self.machine.offence else State.STOPPED
            if self.machine.offence:
                reason = f"Its guest broke a rule of the connection: {self.machine.offence}."
        return state, reason

    def overview(self, now: float) -> Overview:
        """As it is at this reading of the service clock."""
        state, reason = self.condition
        idle = 0.0 if self.leases else max(0.0, now - self.last_used)
        age = max(idle, time.time() - self.since) if self.since is not None else None
        return Overview(self.chat, self.digest, self.name, state, reason, self.leases, idle, age)


def forget_empty(slots: dict[str, Slot], slot: Slot) -> None:
    """Of a chat without a sandbox only why it has none is kept, and of the last ones only."""
    if slot.starting is not None or slot.lock.locked():
        return
    if not slot.reason:
        slots.pop(slot.digest, None)
        return
    failed = [other for other in slots.values() if not other.name and not other.leases]
    for other in failed[: max(0, len(failed) - _MAX_FAILED)]:
        slots.pop(other.digest, None)


def unforeseen(error: Exception) -> str:
    """What people are told of it: the host's own word (a full disk, say), else where to look."""
    if isinstance(error, OSError) and error.strerror:
        return f"The host refused: {error.strerror}."
    return "The service's log has the reason."
