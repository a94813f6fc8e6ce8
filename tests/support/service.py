"""The service as a test runs it: the true parts over the memory driver, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from cubicle.chat.authentication import Authentication
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.core.caller import Caller
from cubicle.core.keys import KeyRing
from cubicle.core.problem import UNAUTHORIZED
from cubicle.drivers.memory import MemoryDriver
from cubicle.fairness.fair_queue import FairQueue
from cubicle.files.uploads import Uploads
from cubicle.http_api import errors
from cubicle.http_api.auth import AccessCheck
from cubicle.http_api.fair_share import FairShare
from cubicle.http_api.request_log import RequestLog
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.server import OPTIONS
from cubicle.http_api.service import ServiceRoutes
from cubicle.http_api.uvicorn_http import Server
from cubicle.journal.journal import Journal
from cubicle.mcp_api.endpoint import McpEndpoint
from cubicle.mcp_api.handlers import Instructions
from cubicle.mcp_api.unfinished_calls import UnfinishedCalls
from cubicle.prompt.workspace import Workspace
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings
from cubicle.tools.registry import Registry
from cubicle.tools.sub_agent import SubAgent

ACCEPT = "application/json, text/event-stream"
MODERN = "2026-07-28"


@dataclass
class Service:
    """A running service and a plain client of it."""

    url: str
    fleet: Fleet
    settings: Settings
    client: httpx.AsyncClient
    door: McpEndpoint
    uploads: Uploads
    calls: int = 0

    async def post(
        self,
        body: Any,
        *,
        chat: str | None = "test",
        headers: dict[str, str] | None = None,
        path: str = "/mcp",
    ) -> httpx.Response:
        """One POST; a body that is not bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Accept": ACCEPT, "Content-Type": "application/json", **({"X-Chat-Id": chat} if chat else {})}
        return await self.client.post(path, content=content, headers=sent | (headers or {}))

    async def ask(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """The JSON-RPC answer to a request of the handshake era."""
        self.calls += 1
        body = {"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params or {}}
        answer = messages(await self.post(body, **options))[-1]
        assert answer["id"] == body["id"]
        return answer

    async def ask_modern(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """The same in the era without handshake."""
        self.calls += 1
        params = {**(params or {}), "_meta": modern_meta() | (params or {}).get("_meta", {})}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method} | options.pop("headers", {})
        if "name" in params or "uri" in params:
            headers["Mcp-Name"] = str(params.get("name") or params.get("uri"))
        body = {"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params}
        return messages(await self.post(body, headers=headers, **options))[-1]

    async def call(self, tool: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """A tool's result."""
        answer = await self.ask("tools/call", {"name": tool, "arguments": arguments}, **options)
        result: dict[str, Any] = answer["result"]
        return result

    async def bash(self, command: str, **options: Any) -> str:
        """What a command prints; it must not fail."""
        arguments = {"command": command, "description": "test"}
        result = await self.call("bash_tool", arguments, **options)
        assert not result["isError"], result
        return text(result)


def modern_meta() -> dict[str, Any]:
    return {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }


def text(result: dict[str, Any]) -> str:
    """The first block of a tool's result."""
    block = result["content"][0]
    assert block["type"] == "text"
    return str(block["text"])


def messages(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON-RPC messages of an answer, be it JSON or events."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    return [response.json()]


@asynccontextmanager
async def raw_post(url: str, body: dict[str, Any], *headers: str) -> AsyncIterator[asyncio.StreamReader]:
    """A POST written by hand, for what no HTTP library sends; leaving the block hangs up."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        content = json.dumps(body).encode()
        lines = ["POST /mcp HTTP/1.1", f"Host: {host}", f"Accept: {ACCEPT}", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(content)}", "Connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class _Server(Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals stay with the test runner."""
        yield

    async def main_loop(self) -> None:
        """Ends at once: uvicorn looks every tenth of a second whether it is to end, and hundreds of tests wait for it."""
        ticking = asyncio.create_task(super().main_loop())
        ended = asyncio.create_task(self.ending.wait())
        await asyncio.wait([ticking, ended], return_when=asyncio.FIRST_COMPLETED)
        ticking.cancel()
        ended.cancel()


@asynccontextmanager
async def serve(app: Any, own: socket.socket | None = None, **options: Any) -> AsyncIterator[str]:
    """An ASGI application on a free port of the loopback, or on a socket of the test; as the product serves it."""
    with own or socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, **{"timeout_graceful_shutdown": 2, **OPTIONS, **options})
        server = _Server(config)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.005)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.ending.set()
        for connection in list(server.server_state.connections):  # those that did not end in time
            connection.transport.abort()
        await asyncio.sleep(0)


def refusing(_request: Request, _message: str) -> Response:
    """For those without a key, instead of the page that asks for it."""
    return errors.response(UNAUTHORIZED)


async def instructions(caller: Caller) -> str:
    return f"You work in chat {caller.chat.id} for {caller.email}."


@dataclass
class Options:
    """What a test wants otherwise than usual."""

    settings: dict[str, Any] = field(default_factory=dict)
    keys: str = ""
    sub_agent: SubAgent | None = None
    fleet: Fleet | None = None
    instructions: Instructions | None = None
    journal: Journal | None = None
    unfinished: UnfinishedCalls | None = None


@asynccontextmanager
async def fleet_of(folder: Path, pool_size: int = 0, kind: type[MemoryDriver] = MemoryDriver) -> AsyncIterator[Fleet]:
    """A fleet whose sandboxes are gone at the end."""
    driver = kind(folder)
    async with Fleet(driver, ChatIndex(folder / "ledger"), pool_size=pool_size) as fleet:
        try:
            yield fleet
        finally:
            for seen in await driver.list():
                await driver.delete(seen.name)


@asynccontextmanager
async def service_of(fleet: Fleet, options: Options | None = None) -> AsyncIterator[Service]:
    """A service over a fleet."""
    options = options or Options()
    settings = Settings(_env_file=None, **options.settings)  # type: ignore[call-arg]
    ring = KeyRing.parse(settings.mcp_api_key, options.keys)
    registry = Registry.build(Workspace(fleet), settings, options.sub_agent, journal=options.journal)
    uploads = Uploads(fleet)
    queue = FairQueue()
    authentication = Authentication(KeyAttempts(ring, settings.wrong_keys_per_minute), None, settings.known_hosts)
    table = RouteTable(settings.mcp_paths)
    door = McpEndpoint(
        registry, uploads, options.instructions or instructions, settings, authentication, queue, options.unfinished
    )
    app = Starlette(
        routes=table.bind(mcp=door, service=ServiceRoutes(registry, settings, locked=bool(ring))),
        middleware=[Middleware(AccessCheck, authentication, table, refusing)],
        exception_handlers=errors.HANDLERS,  # type: ignore[arg-type]
    )
    async with (
        door.running(),
        serve(FairShare(RequestLog(app), queue, ring)) as url,
        # Nothing is encrypted here, and reading all authorities takes longer than most tests.
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Service(url, fleet, settings, client, door, uploads)
