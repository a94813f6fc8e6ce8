"""One run as it goes: its events read, shown to whoever follows, and judged at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio

from cubicle.agents.adapters.base import Adapter
from cubicle.agents.report import RunReport
from cubicle.agents.run_dir import EventLines, RunDir
from cubicle.chat.agent_steps import AgentStep, AgentUsage
from cubicle.guest.operations import Exit
from cubicle.machine.machine import Machine
from cubicle.machine.process import Process

_KILL_LIMIT = 8.0


@dataclass(frozen=True)
class Job:
    """A run and what it was started with."""

    machine: Machine
    folder: RunDir
    adapter: Adapter
    program: str
    timeout: float
    max_turns: int = 0
    """0 when a service before this one started it."""
    take_over_env: Mapping[str, str] = field(default_factory=dict)
    """For the person who goes on with the session: with a token of its own."""


class RunFollower:
    """Follows one process of an agent."""

    def __init__(self, job: Job, process: Process) -> None:
        self.job = job
        self.reports: list[Callable[[str], None]] = []
        self.watchers: list[Callable[[AgentStep | AgentUsage], None]] = []
        """Told the same as `reports`, in parts, and what was used."""
        self.usage = AgentUsage()
        self.done = asyncio.Event()
        self._process = process
        self._reader = job.adapter.reader()
        self._stopped = False

    async def to_the_end(self) -> RunReport:
        job, outcome = self.job, self._reader.outcome
        if job.max_turns:
            await job.folder.open_window(job.machine)
        lines = EventLines()
        async for _, chunk in self._process.output:
            for event in lines.feed(chunk):
                known = outcome.session
                for step in self._reader.read(event):
                    self._report(step)
                self._note_usage()
                if outcome.session and not known:
                    await self._announce(outcome.session)
                await asyncio.sleep(0)  # a chunk may hold thousands: others want the loop, too
            if job.max_turns and outcome.turns > job.max_turns and not self._stopped:
                self._stopped = True  # the agent has no limit of its own, or does not keep it
                await self._process.kill()
        exit = await self._process.wait()
        return await self._ending(exit)

    async def kill(self) -> None:
        """End the agent and all it started, though the call is cancelled."""
        with anyio.move_on_after(_KILL_LIMIT, shield=True):
            await self._process.kill()
            await self._process.wait()

    def _report(self, step: AgentStep) -> None:
        for report in self.reports:
            report(step.line + "\n")
        for watcher in self.watchers:
            watcher(step)

    def _note_usage(self) -> None:
        if (used := self._reader.outcome.usage) != self.usage:
            self.usage = used
            for watcher in self.watchers:
                watcher(used)

    async def _announce(self, session: str) -> None:
        """Say early how the run can be found again."""
        job = self.job
        if job.max_turns:
            argv = job.adapter.take_over(job.program, session)
            await job.folder.note_session(job.machine, session, argv, job.take_over_env)
            self._report(AgentStep("note", f"[agent session {session}]"))

    async def _ending(self, exit: Exit) -> RunReport:
        job, outcome = self.job, self._reader.outcome
        complaint = "" if outcome.error is False else await job.folder.last_words(job.machine)
        return RunReport(job.program, outcome, exit, job.timeout, job.max_turns, complaint, self._stopped)
