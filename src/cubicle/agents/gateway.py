"""The way out for coding agents: they call a loopback port of their sandbox, and the service adds the key.

An agent holds a token, not a key (see `LiveTokens`). The service answers only calls on its list, sends them only where
the settings say, and counts what they cost. So neither the sandbox nor a caller's header ever decides where a
credential goes.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import parse_qsl, urlencode

import anyio
import h11

from cubicle.agents.agent_token import AgentToken
from cubicle.agents.budget import OutOfBudget
from cubicle.agents.gateway_http import BadGatewayRequest, GatewayHttp
from cubicle.agents.gateway_sse import BadEndpoint, Endpoint
from cubicle.agents.live_tokens import TokenRefused
from cubicle.agents.mcp_servers import McpServer, McpServers
from cubicle.agents.pricing import TokenUsage, UsageMeter
from cubicle.agents.upstreams import UpstreamApi, UpstreamFailed, is_plain_path
from cubicle.core.caller import Headers, RawHeaders
from cubicle.core.chat import Chat
from cubicle.log import chat_fields
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream

if TYPE_CHECKING:
    import httpx

    from cubicle.agents.upstream_client import UpstreamClient

log = logging.getLogger(__name__)

PORT = 3129
ADDRESS = f"http://127.0.0.1:{PORT}"

_AT_ONCE = 64
_SENT = ("accept", "content-type", "user-agent", "last-event-id", "originator", "version", "session-id", "thread-id")
_SENT_PREFIXES = (
    "anthropic-",
    "x-stainless-",
    "x-app",
    "x-claude-",
    "x-codex-",
    "openai-",
    "x-openai-",
    "x-client-r",
    "x-goog-api-c",
    "mcp-",
)
_RETURNED = ("content-type", "cache-control", "retry-after", "retry-after-ms", "request-id", "x-request-id")
_RETURNED_PREFIXES = ("anthropic-ratelimit-", "mcp-", "x-should-retry")

Sent = list[tuple[str, str]]


class Budgets(Protocol):
    """What chats may spend; see `Purses`."""

    async def begin(self, chat: Chat) -> None:
        """One more request. Raises OutOfBudget."""

    def count(self, chat: Chat, model: str, usage: TokenUsage) -> None:
        """Add what a request used."""

    async def save(self, chat: Chat) -> None:
        """Have it on disk."""


class Tokens(Protocol):
    """Which tokens work; see `LiveTokens`."""

    async def checked(self, chat: Chat, text: str) -> AgentToken:
        """The token that this text is. Raises TokenRefused."""

    def using(self, chat: Chat, given: AgentToken) -> AbstractContextManager[anyio.CancelScope]:
        """What is done in the block ends when the token does."""


class Gateway:
    """Attends every machine in use (see `Fleet`). It runs in the network worker (`cubicle.worker`)."""

    def __init__(self, apis: Mapping[str, UpstreamApi], servers: McpServers, budgets: Budgets, tokens: Tokens) -> None:
        self._apis = apis
        self._servers = servers
        self._purses = budgets
        self._tokens = tokens
        self._posts: dict[tuple[Chat, str, str], str] = {}
        """Where the open event streams of MCP servers want posts, by chat, server and a name of ours."""
        self._client: UpstreamClient | None = None
        self._opening = anyio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._client is not None:
            await self._client.close()

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        """Listen in this machine for as long as it is in use."""
        gate = anyio.Semaphore(_AT_ONCE)

        async def serve(stream: Stream) -> None:
            try:
                async with gate:
                    await self._serve(chat, stream)
            except SandboxError:
                raise
            except Exception:
                # One connection must not take the others with it.
                log.exception("a call of an agent failed", extra=chat_fields(chat))

        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(machine.listen(PORT, serve))
            except* MachineError as errors:
                # The rest of the sandbox works without agents.
                log.warning("agents of this sandbox cannot call out: %s", errors.exceptions, extra=chat_fields(chat))
            yield

    async def _serve(self, chat: Chat, stream: Stream) -> None:
        wire = GatewayHttp(stream)
        try:
            while (request := await wire.request()) is not None:
                await self._answer(chat, wire, request)
                if not wire.heard.is_set():
                    break
        except BadGatewayRequest as error:
            if wire.fresh:
                await wire.refuse(400, "invalid_request_error", str(error))
        if wire.over:
            await wire.finish()

    async def _answer(self, chat: Chat, wire: GatewayHttp, request: h11.Request) -> None:
        """Find out who asks for what, then forward it."""
        headers = Headers(request.headers)
        sent = _forwarded(request.headers, _SENT, _SENT_PREFIXES)
        path, _, query = request.target.decode("latin-1").partition("?")
        try:
            given = await self._tokens.checked(chat, _shown_token(headers, query))
        except TokenRefused as error:
            await wire.refuse(401, "authentication_error", str(error))
            return
        with self._tokens.using(chat, given) as scope:
            await self._forward(chat, wire, given, (request.method.decode(), path, query), sent)
        if scope.cancelled_caught:
            wire.heard.clear()  # the token ended, and so must the connection

    async def _forward(
        self, chat: Chat, wire: GatewayHttp, given: AgentToken, asked: tuple[str, str, str], sent: Sent
    ) -> None:
        method, path, query = asked
        _, first, *rest = path.split("/", 2) if is_plain_path(path) else ("", "", "")
        inner = "/" + "".join(rest)
        if first == "mcp":
            await self._forward_mcp(chat, wire, given, inner.strip("/"), method, sent)
        elif (api := self._apis.get(first)) is not None and api.allows(method, inner):
            await self._forward_call(chat, wire, api, inner, query, method, sent)
        else:
            await wire.refuse(404, "not_found_error", "Agents may not make this call.")

    async def _forward_mcp(
        self, chat: Chat, wire: GatewayHttp, given: AgentToken, path: str, method: str, sent: Sent
    ) -> None:
        name, _, post = path.partition("/")
        server = self._servers.find(name, chat.tenant) if name in given.servers else None
        if server is None or not server.url or (post and not server.sse):
            await wire.refuse(404, "not_found_error", "This agent was not given an MCP server of this name.")
        elif server.sse:
            await self._forward_sse(chat, wire, server, post, method, sent)
        elif method not in ("GET", "POST", "DELETE"):
            await wire.refuse(405, "invalid_request_error", "MCP knows GET, POST and DELETE.")
        else:
            await self._exchange(wire, method, server.url, [*sent, *server.headers], None)

    async def _forward_sse(
        self, chat: Chat, wire: GatewayHttp, server: McpServer, post: str, method: str, sent: Sent
    ) -> None:
        """A stream of events, or a post to where an open one said; nowhere else."""
        headers = [*sent, *server.headers]
        if method == "POST" and (url := self._posts.get((chat, server.name, post))):
            await self._exchange(wire, method, url, headers, None)
        elif method == "GET" and not post:
            key = (chat, server.name, secrets.token_urlsafe(16))
            endpoint = Endpoint(server.url, f"/mcp/{server.name}/{key[2]}")

            def passed(chunk: bytes) -> bytes:
                through = endpoint.pass_on(chunk)
                if endpoint.url:
                    self._posts[key] = endpoint.url
                return through

            try:
                await self._exchange(wire, method, server.url, headers, None, passed)
            finally:
                self._posts.pop(key, None)
        else:
            await wire.refuse(405, "invalid_request_error", "This MCP server is of the type sse: GET its stream first.")

    async def _forward_call(
        self, chat: Chat, wire: GatewayHttp, api: UpstreamApi, path: str, query: str, method: str, sent: Sent
    ) -> None:
        try:
            await self._purses.begin(chat)
        except OutOfBudget as error:
            log.info("agent stopped: %s", error, extra=chat_fields(chat))
            await wire.refuse(402, "billing_error", f"{error} Stop here and report what is done.")
            return
        kept = urlencode([(k, v) for k, v in parse_qsl(query) if k != "key"])
        bill = UsageBill(api, chat, self._purses)
        try:
            url = f"{api.url}{path}{'?' + kept if kept else ''}"
            await self._exchange(wire, method, url, [*sent, *api.headers], bill)
        finally:
            bill.settle()
            with anyio.CancelScope(shield=True):
                await self._purses.save(chat)

    async def _opened(self) -> UpstreamClient:
        """Made for the first call, in a thread: most sandboxes run no agent."""
        async with self._opening:
            if self._client is None:
                self._client = await anyio.to_thread.run_sync(_open_client)
            return self._client

    async def _exchange(
        self,
        wire: GatewayHttp,
        method: str,
        url: str,
        headers: Sent,
        bill: UsageBill | None,
        passed: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Send the request on and the answer back, both as they come; stop when either side is gone."""
        headers = [*headers, ("accept-encoding", "identity")]
        failure: BadGatewayRequest | SandboxError | None = None
        client = await self._opened()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, wire, tasks.cancel_scope)
            try:
                body = wire.body()
                async with client.stream(method, url, headers, body) as answer:
                    async for _ in body:
                        pass  # answered before all of it was asked
                    await self._pass_on(wire, answer, bill, passed)
            except (UpstreamFailed, BadEndpoint) as error:
                kind = str(error) if isinstance(error, UpstreamFailed) else type(error).__name__
                log.warning("an agent's call failed: %s", kind)
                if not wire.fresh:
                    wire.heard.clear()  # the answer breaks off here, and so must the connection
                else:
                    await wire.refuse(502, "api_error", "The service cannot reach this API now.", again=True)
            except (BadGatewayRequest, SandboxError) as error:
                failure = error  # raised outside of the group, which would wrap it
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _pass_on(
        self, wire: GatewayHttp, answer: httpx.Response, bill: UsageBill | None, passed: Callable[[bytes], bytes]
    ) -> None:
        if bill is not None and answer.status_code in (401, 403):
            # The answer may quote the key.
            api = bill.api
            log.error("the key of the %s API is refused (%s)", api.name, api.keys)
            message = f"The model's API refuses the key of this service; its operator must set {api.keys}."
            await wire.refuse(answer.status_code, "authentication_error", message)
            return
        if bill is not None:
            bill.meter.streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
        await wire.head(answer.status_code, _forwarded(answer.headers.raw, _RETURNED, _RETURNED_PREFIXES))
        async for chunk in answer.aiter_bytes():
            if bill is not None:
                bill.meter.feed(chunk)
            if through := passed(chunk):
                await wire.data(through)
        if bill is not None:
            bill.meter.whole = True
            bill.settle()  # before the agent can ask for more
        await wire.end()


class UsageBill:
    """One call of a model: what it uses, and whose purse pays."""

    def __init__(self, api: UpstreamApi, chat: Chat, purses: Budgets) -> None:
        self.api = api
        self.meter = UsageMeter()
        self._chat = chat
        self._purses = purses
        self._settled = False

    def settle(self) -> None:
        if not self._settled:
            self._settled = True
            self._purses.count(self._chat, self.meter.model, self.meter.finish())


def _open_client() -> UpstreamClient:
    from cubicle.agents.upstream_client import UpstreamClient

    return UpstreamClient()


async def _watch(wire: GatewayHttp, scope: anyio.CancelScope) -> None:
    with suppress(SandboxError):
        await wire.hung_up()
    scope.cancel()


def _shown_token(headers: Headers, query: str) -> str:
    bearer = headers.get("authorization") or ""
    found = bearer[7:] if bearer[:7].lower() == "bearer " else ""
    asked = dict(parse_qsl(query)).get("key", "")
    return found or headers.get("x-api-key") or headers.get("x-goog-api-key") or asked


def _forwarded(raw: RawHeaders, names: tuple[str, ...], prefixes: tuple[str, ...]) -> Sent:
    """The headers that may pass, of either direction."""
    pairs = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw)
    return [(name, value) for name, value in pairs if name in names or name.startswith(prefixes)]
