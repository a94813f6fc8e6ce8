"""The MCP endpoint as the application sees it: one object, entered once, that answers on every MCP path."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from cubicle import __version__
from cubicle.chat.access_watch import AccessWatch
from cubicle.chat.authentication import Authentication
from cubicle.chat.clients import Clients
from cubicle.core.event_ids import signing_key
from cubicle.fairness.fair_queue import FairQueue
from cubicle.files.uploads import Uploads
from cubicle.mcp_api.cancellation import InFlight
from cubicle.mcp_api.direct_calls import DirectCalls
from cubicle.mcp_api.handlers import Instructions, McpHandlers
from cubicle.mcp_api.mcp_tasks import McpTasks
from cubicle.mcp_api.repeated_calls import RepeatedCalls, read_boot
from cubicle.mcp_api.request_check import MAX_BODY, Forward, Receive, RequestCheck, Scope, Send
from cubicle.mcp_api.request_ids import RequestIds
from cubicle.mcp_api.resumption import ResumableAnswers
from cubicle.mcp_api.running_calls import RunningCalls
from cubicle.mcp_api.sessions import McpSessions
from cubicle.mcp_api.subscriptions import Subscriptions
from cubicle.mcp_api.task_methods import TaskMethods
from cubicle.mcp_api.ui_cards import UiCards
from cubicle.mcp_api.unfinished_calls import UnfinishedCalls
from cubicle.settings import Settings
from cubicle.tools.registry import Registry


class McpEndpoint:
    """Both protocol eras on one address. Answers only inside `running()`."""

    def __init__(
        self,
        registry: Registry,
        uploads: Uploads,
        instructions: Instructions,
        settings: Settings,
        authentication: Authentication,
        queue: FairQueue | None = None,
        unfinished: UnfinishedCalls | None = None,
        secret: bytes = b"",
        watch: AccessWatch | None = None,
        forward: Forward | None = None,
        clients: Clients | None = None,
        cards: UiCards | None = None,
    ) -> None:
        """`secret` signs what clients show again after a restart of the service."""
        self._forward = forward
        self._registry = registry
        self._uploads = uploads
        self._instructions = instructions
        self._settings = settings
        self._authentication = authentication
        self._cards = cards
        self._watch = watch or AccessWatch(authentication)
        self._queue = queue or FairQueue()
        self._clients = clients or Clients()
        self._listening = Subscriptions(uploads.changes)
        self._key = signing_key(secret or secrets.token_bytes(32))
        self._gate: RequestCheck | None = None
        self._unfinished = unfinished or UnfinishedCalls(registry.journal)
        self._calls: RunningCalls | None = None
        self._answers: ResumableAnswers | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        in_flight = InFlight()
        boot, seconds = await asyncio.to_thread(read_boot), self._settings.resume_seconds
        self._calls = RunningCalls(self._queue)
        request_ids = RequestIds()
        repeated = RepeatedCalls(self._registry, self._calls, seconds, boot, request_ids, self._watch)
        tasks = TaskMethods(McpTasks(repeated, self._registry.journal, self._settings.task_hours))
        answers = self._answers = ResumableAnswers(
            self._key, seconds, tasks.left_behind, has_journal=self._registry.journal.keeps
        )
        async with self._calls, answers:
            protocol = McpHandlers(
                self._registry,
                self._uploads,
                self._instructions,
                in_flight,
                self._listening,
                self._queue,
                repeated,
                tasks,
                clients=self._clients,
                cards=self._cards,
            )
            server = protocol.server(__version__)
            direct: DirectCalls | None = DirectCalls(protocol)
            if self._settings.otel_exporter_otlp_endpoint:
                from cubicle.mcp_api.tracing import Tracing

                server.middleware.insert(0, Tracing())
                direct = None  # spans are the SDK's
            manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=MAX_BODY)
            async with manager.run(), self._unfinished.looked_after(repeated):
                self._gate = RequestCheck(
                    server,
                    manager.handle_request,
                    self._authentication,
                    self._settings.single_user_mode,
                    McpSessions(),
                    in_flight,
                    answers,
                    request_ids,
                    self._watch,
                    self._calls,
                    direct,
                    self._forward,
                )
                yield
                self._gate = None
                self.end_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._gate is None:
            raise RuntimeError("the MCP endpoint is not open")
        await self._gate(scope, receive, send)

    def end_streams(self) -> None:
        """End what goes on by itself; a server calls it before it waits for its connections."""
        self._listening.close()
        keeps = self._answers is not None and self._registry.journal.keeps
        coming_back = self._answers.part() if self._answers is not None and keeps else ()
        if self._calls is not None:
            self._calls.stop(coming_back)

    async def drain(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Refuse new calls, and wait so long for those that run: before `end_streams`."""
        if self._calls is not None:
            await self._calls.drain(seconds, is_over)

    @property
    def endpoint(self) -> _Endpoint:
        """For every path of MCP_PATHS; every method comes here, so that the refusals keep their order."""
        return _Endpoint(self)


class _Endpoint:
    """An ASGI application by type: Starlette takes a plain function for a request handler."""

    def __init__(self, endpoint: McpEndpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)
