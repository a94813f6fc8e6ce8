"""Runs of coding agents: started, followed, ended; found again after a lost caller or a killed service."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from dataclasses import replace
from typing import Self

from cubicle.agents.adapters.base import SESSION, Adapter, AgentCommand
from cubicle.agents.adapters.registry import chosen
from cubicle.agents.agent_token import AgentToken
from cubicle.agents.live_tokens import LiveTokens
from cubicle.agents.mcp_servers import McpServer, McpServers
from cubicle.agents.report import RunReport, compose, earlier, interrupted
from cubicle.agents.run_dir import RunDir, find
from cubicle.agents.run_follower import Job, RunFollower
from cubicle.agents.run_record import RunRecord
from cubicle.core.chat import Chat
from cubicle.guest.operations import Exit
from cubicle.guest.wire import ErrorCode
from cubicle.journal.journal import Journal, no_journal
from cubicle.log import chat_fields
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import HOME, Machine
from cubicle.prompt.workspace import Workspace
from cubicle.settings import Settings
from cubicle.tools.base import Answer, Call, fail, run_name
from cubicle.tools.command_once import require_unbegun
from cubicle.tools.sub_agent import MODELS, Task

log = logging.getLogger(__name__)

_AT_ONCE = 4
_AFTERWARDS = 24 * 3600
"""A token has run out this long after its run must have ended, whatever is known of the run: a person who takes the
session over later asks for a new one (`open`)."""
_DIRECT = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


class NotOurs(SandboxError):
    """A session of another agent than the one that the service runs."""


class SubAgents:
    """The agent behind the tool (see `SubAgent`). Once its block is left, runs are let go, not ended."""

    def __init__(
        self,
        workplace: Workspace,
        settings: Settings,
        servers: McpServers,
        tokens: LiveTokens,
        journal: Journal | None = None,
    ) -> None:
        self._workplace = workplace
        self._journal = journal or no_journal()
        self._servers = servers
        self.tokens = tokens
        self._adapter: Adapter = chosen(settings.sub_agent_cli)
        self._program = settings.sub_agent_cli
        self._timeout = settings.sub_agent_timeout
        self._max_turns = settings.sub_agent_max_turns
        self._default_model = settings.sub_agent_default_model
        named = {alias: str(getattr(settings, f"anthropic_default_{alias}_model")) for alias in MODELS}
        self._aliases = {alias: model for alias, model in named.items() if model}
        self._hearings: dict[tuple[Chat, str], RunFollower] = {}
        self._stopping = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._stopping = self.tokens.closing = True

    async def run(self, call: Call, task: Task) -> Answer:
        chat = call.caller.chat
        servers, left_out = self._servers.chosen(call.caller.mcp_servers, chat.tenant, sse=self._adapter.speaks_sse)
        if task.resume_session_id and not SESSION.fullmatch(task.resume_session_id):
            return fail("`resume_session_id` is not a session id. Take it from the end of an earlier answer.")
        if sum(1 for owner, _ in self._hearings if owner == chat) >= _AT_ONCE:
            return fail(f"{_AT_ONCE} agents work in this sandbox already. Wait for one of them to finish.")
        folder, order = self._order(chat, task, servers, run_name(call.command_id) if call.identity else "")
        async with self._workplace.lease(call.caller) as machine:
            if call.begun is not None and (taken := await self._take_up(machine, call, folder, order)) is not None:
                return taken
            missed = await self._settle(machine, call, task.resume_session_id) if task.resume_session_id else ""
            if left_out:
                call.report(f"{left_out}\n")
            ending = await self._start(machine, call, folder, order, task.prompt)
            return compose(ending, missed, left_out)

    async def open(self, chat: Chat, machine: Machine, session: str, agent: str) -> None:
        """Open a saved session for the person at the terminal. Raises NotOurs, NoTerminal."""
        if agent != self._adapter.name:
            raise NotOurs(f"This is a session of {agent}, and this service runs {self._adapter.name} (SUB_AGENT_CLI).")
        folder, order = self._order(chat, Task("", resume_session_id=session), ())
        await folder.fill(machine, "", self._adapter.files(order))
        argv = self._adapter.take_over(self._program, session)
        await folder.note_take_over(machine, argv, self._take_over_environment(chat, folder, order))
        self.tokens.expect_terminal(chat)
        await folder.open_for_a_person(machine)

    def _order(
        self, chat: Chat, task: Task, servers: tuple[McpServer, ...], run: str = ""
    ) -> tuple[RunDir, AgentCommand]:
        folder = RunDir(run or f"agent-{secrets.token_hex(6)}")
        return folder, AgentCommand(
            folder=folder.path,
            model=self._model(task.model),
            max_turns=task.max_turns or self._max_turns,
            carried=self._token(chat, folder, servers),
            session=str(uuid.uuid4()),
            resume=task.resume_session_id,
            servers=servers,
            aliases=self._aliases,
        )

    def _token(self, chat: Chat, folder: RunDir, servers: tuple[McpServer, ...], *, take_over: bool = False) -> str:
        until = int(time.time() + self._timeout + _AFTERWARDS)
        return self.tokens.issue(
            chat, AgentToken(folder.run, until, tuple(server.name for server in servers), take_over)
        )

    def _take_over_environment(self, chat: Chat, folder: RunDir, order: AgentCommand) -> dict[str, str]:
        token = self._token(chat, folder, order.servers, take_over=True)
        return self._adapter.environment(replace(order, carried=token)) | _DIRECT

    def _model(self, alias: str | None) -> str:
        name = alias or self._default_model
        return self._aliases.get(name, name)

    async def _start(self, machine: Machine, call: Call, folder: RunDir, order: AgentCommand, prompt: str) -> RunReport:
        """A new run, to its end."""
        env = self._adapter.environment(order) | _DIRECT
        await folder.fill(machine, prompt, self._adapter.files(order))
        command = folder.command(self._adapter.command(self._program, order))
        chat = call.caller.chat
        theirs = self._take_over_environment(chat, folder, order)
        async with (
            self.tokens.running(chat, folder.run),
            machine.run(
                command,
                cwd=HOME,
                env=env,
                timeout=self._timeout,
                id=folder.run,
                keep=bool(call.identity),
                stays=call.leaving,
            ) as process,
        ):
            process.detach()
            log.info("agent started", extra=chat_fields(chat) | {"run": folder.run})
            job = Job(machine, folder, self._adapter, self._program, self._timeout, order.max_turns, theirs)
            ending = await self._hear(call, RunFollower(job, process))
        if call.heard():
            await folder.note_delivered(machine)
        return ending

    async def _take_up(self, machine: Machine, call: Call, folder: RunDir, order: AgentCommand) -> Answer | None:
        """The answer of a run that a service before this one started, when it has ended; None if it never began."""
        job = Job(machine, folder, self._adapter, self._program, self._timeout)
        exit: Exit | None = None
        try:
            async with machine.attach(folder.run) as process, self.tokens.running(call.caller.chat, folder.run):
                exit = (await self._hear(call, RunFollower(job, process))).exit
        except MachineError as error:
            if error.code is ErrorCode.NOT_FOUND:
                code = await folder.exit_code(machine)
                exit = None if code is None else Exit(code=code & 255)
                if exit is None:
                    require_unbegun(machine, call, error)
                    return None
            elif error.code is not ErrorCode.INTERRUPTED:
                raise
        reader = self._adapter.reader()
        for event in await folder.events(machine):
            for _ in reader.read(event):
                pass
        if exit is None:
            return interrupted(reader.outcome)
        complaint = await folder.last_words(machine) if reader.outcome.error is not False else ""
        report = RunReport(self._program, reader.outcome, exit, self._timeout, order.max_turns, complaint)
        if call.heard():
            await folder.note_delivered(machine)
        return compose(report)

    async def _settle(self, machine: Machine, call: Call, session: str) -> str:
        """Let an earlier run of the session come to its end; what it said, if nobody has heard it yet."""
        folder = await find(machine, session)
        if folder is None:
            return ""
        hearing = self._hearings.get((call.caller.chat, folder.run))
        if hearing is not None:
            hearing.reports.append(call.report)
            hearing.watchers.append(call.watch_agent)
            await hearing.done.wait()
        else:
            await self._adopt(machine, call, folder)
        if await folder.is_delivered(machine):
            return ""
        reader = self._adapter.reader()
        for event in await folder.events(machine):
            for _ in reader.read(event):
                pass
        await folder.note_delivered(machine)
        return earlier(reader.outcome)

    async def _adopt(self, machine: Machine, call: Call, folder: RunDir) -> None:
        """Follow a run that a service before this one started, if it still goes on."""
        job = Job(machine, folder, self._adapter, self._program, self._timeout)
        try:
            async with machine.attach(folder.run) as process, self.tokens.running(call.caller.chat, folder.run):
                await self._hear(call, RunFollower(job, process))
        except MachineError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise

    async def _hear(self, call: Call, hearing: RunFollower) -> RunReport:
        """Hear a run to its end. A cancelled call ends the run; a service that stops does not."""
        key = (call.caller.chat, hearing.job.folder.run)
        self._hearings[key] = hearing
        hearing.reports.append(call.report)
        record = RunRecord(self._journal, *key, call.id)
        hearing.watchers += [call.watch_agent, record.watch]
        try:
            return await hearing.to_the_end()
        except asyncio.CancelledError:
            if not self._stopping:
                await hearing.kill()
                log.info("agent cancelled", extra=chat_fields(key[0]) | {"run": key[1]})
            raise
        finally:
            record.end()
            del self._hearings[key]
            hearing.done.set()
