"""The terminal's routes: status, start, the relayed WebSocket, and the coding agents that run or ran."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext, suppress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from cubicle.agents import sessions as agents
from cubicle.agents.runs import NotOurs, SubAgents
from cubicle.chat import terminal
from cubicle.chat.journal_notes import JournalNotes
from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.http_api.chats import chat_of
from cubicle.http_api.credential import is_view_only
from cubicle.http_api.models import ProcessKilled, ProgramStarted, SessionResumed, TerminalStatus
from cubicle.http_api.visits import Visits
from cubicle.http_api.websocket_proxy import ProxyLimits, WebSocketProxy, refusing
from cubicle.journal.journal import no_journal
from cubicle.machine.errors import Gone, SandboxError
from cubicle.machine.websocket import WebSocketClient
from cubicle.sandbox.fleet import Asleep, Fleet, NoSandbox

MAX_INPUT = 1024**2
MAX_OUTPUT = 4 * 1024**2


class TerminalRoutes:
    """Everything under /terminal/<chat>/ but the page."""

    def __init__(
        self,
        fleet: Fleet,
        limits: ProxyLimits | None = None,
        sub_agents: SubAgents | None = None,
        visits: Visits | None = None,
        notes: JournalNotes | None = None,
    ) -> None:
        self._notes = notes or JournalNotes(no_journal())
        self._fleet = fleet
        self._visits = visits or Visits(fleet)
        self._sub_agents = sub_agents
        self._sockets = FairSlots(total=4096, of_tenant=1024, of_chat=64)
        self._limits = limits or ProxyLimits(most=MAX_INPUT)
        self._terminals = terminal.Terminals()

    async def status(self, request: Request) -> Response:
        chat = chat_of(request)
        running = False
        with suppress(SandboxError):  # not up, or going down: then nothing runs there
            async with self._fleet.look(chat) as machine:
                running = await terminal.is_running(machine)
        return JSONResponse(TerminalStatus(running=running, port=terminal.PORT, sandbox=self._fleet.condition(chat)))

    async def start(self, request: Request) -> Response:
        async with self._visits.lease(request) as machine:
            started = await self._terminals.start(machine)
        return JSONResponse(ProgramStarted(running=True, started=started))

    async def socket(self, client: WebSocket) -> None:
        """Relay to ttyd; the open connection is a lease, so the sandbox stays up."""
        async with (
            refusing(client),
            self._sockets.hold(chat_of(client), wait=False),
            self._fleet.lease(chat_of(client), create=False, wake=False) as machine,
        ):
            backend = await WebSocketClient.open(
                machine, terminal.PORT, "/ws", most=MAX_OUTPUT, subprotocols=[terminal.SUBPROTOCOL]
            )
            try:
                offered = terminal.SUBPROTOCOL in client.scope.get("subprotocols", ())
                await client.accept(terminal.SUBPROTOCOL if offered else None)
                admits = terminal.is_harmless if is_view_only(client) else None
                if admits is None:
                    self._notes.take_over(chat_of(client), "terminal")
                async with nullcontext() if admits else self._take_over(chat_of(client)):
                    await WebSocketProxy(client, backend, machine, self._limits, terminal.is_output, admits).run()
            finally:
                backend.abort()

    def _take_over(self, chat: Chat) -> AbstractAsyncContextManager[None]:
        """While this lasts, a person may use a coding agent by hand."""
        return nullcontext() if self._sub_agents is None else self._sub_agents.tokens.terminal(chat)

    async def sessions(self, request: Request) -> Response:
        chat = chat_of(request)
        if not self._fleet.has(chat):
            return JSONResponse({"sessions": []})
        async with self._fleet.look(chat) as machine:
            found = await agents.sessions(machine)
        return JSONResponse({"sessions": [session.record() for session in found]})

    async def transcript(self, request: Request) -> Response:
        """A page of one saved session: `?after=` is the `next` of the page before."""
        after = request.query_params.get("after", "0")
        async with self._fleet.look(chat_of(request)) as machine:
            page = await agents.transcript(
                machine, request.path_params["session"], int(after) if after.isdecimal() and len(after) < 16 else 0
            )
        return JSONResponse(page.record())

    async def resume(self, request: Request) -> Response:
        """Open a saved session in the terminal, for the person who watches it."""
        chat = chat_of(request)
        if not self._fleet.has(chat):
            raise NoSandbox("This chat has no sandbox yet.")
        if self._sub_agents is None:
            raise NotOurs("This service has no key for a coding agent: its operator must set one up.")
        async with self._fleet.lease(chat, create=False) as machine:
            found = await agents.saved(machine, request.path_params["session"])
            await self._sub_agents.open(chat, machine, found.session_id, found.agent)
            await self._terminals.start(machine)
        self._notes.take_over(chat, "agent")
        return JSONResponse(SessionResumed(resumed=True, session_id=found.session_id))

    async def processes(self, request: Request) -> Response:
        found: list[agents.AgentProcess] = []
        with suppress(Asleep, NoSandbox, Gone):  # not up, or going down: then nothing runs there
            async with self._fleet.look(chat_of(request)) as machine:
                found = await agents.processes(machine)
        return JSONResponse({"processes": [process.record() for process in found]})

    async def kill(self, request: Request) -> Response:
        pid = request.path_params["pid"]
        try:
            async with self._fleet.lease(chat_of(request), create=False, wake=False) as machine:
                await agents.kill(machine, pid)
        except (Asleep, NoSandbox):
            raise agents.NoSuchProcess(f"No coding agent runs as process {pid}.") from None
        return JSONResponse(ProcessKilled(killed=True, pid=pid))
