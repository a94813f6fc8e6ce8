"""Looking is not using: every address and MCP method of the service, asked of a sandbox that is up and of one that is not.

What is asked comes from the table in the code; the service's own routes and methods must all be in it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle import settings
from cubicle.app import running
from cubicle.core.problem import ASLEEP, NO_SANDBOX
from cubicle.drivers.factory import make_driver
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import MCP_METHODS, Use
from cubicle.mcp_api.handlers import McpHandlers
from cubicle.mcp_api.task_methods import TaskMethods
from tests.support.emptying import empty
from tests.support.service import ACCEPT, MODERN, modern_meta, serve

CHAT = "watched"
_MARGIN = 0.4
"""Seconds of idleness before a request that is to leave them as they are."""
MCP_PARAMS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
    "tools/call": {"name": "bash_tool", "arguments": {"command": "true", "description": "test"}},
    "resources/read": {"uri": f"file://uploads/{CHAT}/note.txt"},
    "prompts/get": {"name": "none"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}},
    "logging/setLevel": {"level": "info"},
    **{f"tasks/{verb}": {"taskId": f"{'0' * 32}-e10"} for verb in ("get", "result", "cancel", "update")},
    "subscriptions/listen": {"notifications": {"resourcesListChanged": True}},
}


QUERIES = {"GET /api/chats/{chat}/search": "q=note", "POST /api/files/{chat}/{path}": "to=uploads/other.txt"}
"""What a request needs to be one."""
UNSUITED = {"GET /api/chats/{chat}/pdf/{path}": 422}
"""What is answered where the file is not of the right kind."""
_KIND = re.compile(r":\w+")
TABLE = RouteTable(("/mcp", "/mcp/computer_use"))
ENTRIES = {
    f"{method} {_KIND.sub('', path)}": row for row in TABLE.rows for path in row.paths for method in row.methods.split()
}
"""Method and path, parameters without their kind."""
ROUTES = {entry: row.use for entry, row in ENTRIES.items()}
READ_ROUTES = frozenset(entry for entry, row in ENTRIES.items() if row.reads_files)


@dataclass
class Site:
    url: str
    app: Starlette
    client: httpx.AsyncClient
    capability: str = ""

    async def row(self, chat: str = CHAT) -> dict[str, Any] | None:
        """What the operator sees of the sandbox: itself a look, as the test shows."""
        rows = (await self.client.get("/api/sandboxes")).json()["sandboxes"]
        return next((row for row in rows if row["chat"] == chat), None)

    async def state(self, chat: str = CHAT) -> str:
        row = await self.row(chat)
        return str(row["state"]) if row else "none"

    async def idle(self) -> float:
        row = await self.row()
        assert row
        return float(row["idle_seconds"])

    async def become_idle(self) -> None:
        while await self.idle() < _MARGIN:
            await asyncio.sleep(0.05)

    async def up(self) -> None:
        answer = await self.client.post(f"/api/uploads/{CHAT}/note.txt", content=b"note")
        assert answer.status_code == 201
        granted = await self.client.post(f"/api/chats/{CHAT}/raw/uploads/note.txt")
        self.capability = granted.json()["url"].split("/")[1]

    async def down(self) -> None:
        assert (await self.client.post(f"/api/sandboxes/{CHAT}/stop")).status_code == 200
        assert await self.state() == "stopped"

    async def ask(self, entry: str, chat: str = CHAT, query: str = "") -> int | None:
        """Ask it as a client would; the status, or the close code of a WebSocket."""
        method, _, path = entry.partition(" ")
        values = {"chat": chat, "path": "uploads/note.txt", "capability": self.capability, "pid": "4", "port": "4"}
        if path.startswith("/api/uploads/"):
            values["path"] = "note.txt"
        if entry in QUERIES:
            query = f"{query or '?'}&{QUERIES[entry]}"
        path = re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], "x"), path) + query
        if method == "WS":
            return await _socket(self.url.replace("http", "ws") + path)
        body: dict[str, Any] = {"content": b"x"} if method in ("POST", "PUT") else {}
        if entry == "PUT /api/files/{chat}/{path}":
            body["headers"] = {"If-Match": "*"}
        async with self.client.stream("GET" if method == "*" else method, path, **body) as answer:
            if "event-stream" in answer.headers.get("content-type", ""):
                await anext(answer.aiter_bytes())  # it would never end
            else:
                await answer.aread()
            return answer.status_code

    async def mcp(self, method: str) -> dict[str, Any]:
        params = MCP_PARAMS.get(method, {})
        headers = {"Accept": ACCEPT, "X-Chat-Id": CHAT}
        if method in ("server/discover", "subscriptions/listen"):
            params = {**params, "_meta": modern_meta()}
            headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if method.startswith("tasks/"):
            headers["MCP-Protocol-Version"] = "2025-11-25"
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.client.stream("POST", "/mcp", json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith(("data: ", "{")):
                    said: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    return said
        raise AssertionError(f"no answer to {method}")


async def _socket(url: str) -> int | None:
    try:
        async with asyncio.timeout(30), connect(url, proxy=None) as socket:
            await socket.recv()
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None
    return None


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    chosen = settings.load(
        driver="memory", data_dir=tmp_path_factory.mktemp("data"), pool_size=0, anthropic_api_key="a-key-for-agents"
    )
    async with (
        running(chosen) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        site = Site(url, app, client)
        await site.up()
        yield site
    await empty(make_driver(chosen))


def _entries(app: Starlette) -> set[str]:
    found = set()
    for route in app.routes:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", str(getattr(route, "path", "")))
        methods = {"WS"} if isinstance(route, WebSocketRoute) else getattr(route, "methods", None) or {"*"}
        found |= {f"{method} {path}" for method in methods - {"HEAD"}}
    return found


def of(*uses: Use) -> list[str]:
    return [entry for entry, use in ROUTES.items() if use in uses and not entry.startswith("* /mcp")]


async def test_every_route_of_the_service_has_a_class(site: Site) -> None:
    assert _entries(site.app) == set(ROUTES)
    assert set(of(Use.LOOKS)) >= READ_ROUTES


async def test_every_method_of_mcp_has_a_class() -> None:
    nothing: Any = None
    server = McpHandlers(nothing, nothing, nothing, nothing, nothing, nothing, nothing, TaskMethods(nothing)).server(
        "0"
    )
    assert set(server._request_handlers) | {"initialize", "ping", "server/discover"} == set(MCP_METHODS)


async def test_looks_do_not_count_as_use_nor_keep_it_up(site: Site) -> None:
    await site.up()
    await site.become_idle()
    before = await site.idle()
    for entry in of(Use.LOOKS):
        assert (await site.ask(entry) or 0) not in (409, 500), entry
    for method in (m for m, use in MCP_METHODS.items() if use is Use.LOOKS):
        assert await site.mcp(method), method
    row = await site.row()
    assert row
    assert (row["state"], row["connections"]) == ("running", 0)
    assert row["idle_seconds"] >= before


async def test_pollers_of_everything_that_looks_do_not_keep_it_awake(tmp_path: Path) -> None:
    """The idle limit is a few seconds here; nothing else of the whole service keeps it up either."""
    chosen = settings.load(driver="memory", data_dir=tmp_path, pool_size=0, container_max_age_hours=2 / 3600)
    async with (
        running(chosen) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        site = Site(url, app, client)
        await site.up()
        events = asyncio.create_task(_follow(client))
        async with asyncio.timeout(60):
            while await site.state() == "running":
                for entry in of(Use.LOOKS):
                    await site.ask(entry)
        for _ in range(3):
            await asyncio.gather(*(site.ask(entry) for entry in of(Use.LOOKS)))
        assert await site.state() == "stopped"
        assert not events.done(), "the stream of events goes on"
        events.cancel()
    await empty(make_driver(chosen))


async def _follow(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", f"/api/chats/{CHAT}/events") as answer:
        async for _ in answer.aiter_bytes():
            pass


@pytest.mark.parametrize("entry", of(Use.LOOKS, Use.USES))
async def test_what_is_stopped_stays_so(site: Site, entry: str) -> None:
    if await site.state() != "stopped":
        await site.up()
        await site.down()
    status = await site.ask(entry)
    assert await site.state() == "stopped"
    if entry in READ_ROUTES:
        assert status == 409
    if entry.startswith("WS"):
        assert status == 4410


@pytest.mark.parametrize("entry", of(Use.LOOKS, Use.USES))
async def test_what_is_not_there_is_not_made(site: Site, entry: str) -> None:
    status = await site.ask(entry, chat="nobody")
    assert await site.state("nobody") == "none"
    if entry.startswith("WS"):
        assert status == 4404


@pytest.mark.parametrize("entry", [*(each for each in of(Use.WAKES) if "{chat}" in each), *sorted(READ_ROUTES)])
async def test_what_wakes_counts_as_use(site: Site, entry: str) -> None:
    """A POST of a start may fail here for want of a terminal or a browser; the sandbox is up before."""
    await site.up()
    await site.down()
    query = "?wake=1" if entry in READ_ROUTES else ""
    status = await site.ask(entry, query=query)
    assert await site.state() == "running"
    assert status == UNSUITED.get(entry, 200) or entry not in READ_ROUTES
    await site.become_idle()
    await site.ask(entry, query=query)
    assert await site.idle() < _MARGIN


@pytest.mark.parametrize("entry", ["POST /terminal/{chat}/start-ttyd", "POST /browser/{chat}/start"])
async def test_a_page_that_comes_back_by_itself_starts_nothing(site: Site, entry: str) -> None:
    await site.up()
    await site.down()
    assert await site.ask(entry, query="?wake=0") == 409
    assert await site.ask(entry, chat="nobody", query="?wake=0") == 404
    assert await site.state() == "stopped"
    assert await site.state("nobody") == "none"


@pytest.mark.parametrize("method", MCP_METHODS)
async def test_only_a_tool_call_wakes_over_mcp(site: Site, method: str) -> None:
    await site.up()
    await site.down()
    said = await site.mcp(method)
    wakes = MCP_METHODS[method] is Use.WAKES
    assert await site.state() == ("running" if wakes else "stopped")
    if method in ("resources/list", "resources/read"):
        assert said["error"]["code"] == -32010
        assert said["error"]["data"] == {"type": ASLEEP}
        assert "tool call wakes it" in said["error"]["message"]
    elif method in ("tasks/get", "tasks/result", "tasks/cancel"):
        assert said["error"]["code"] == -32602
    elif method not in ("prompts/get", "tasks/update"):
        assert "error" not in said, said


async def test_a_stopped_sandbox_says_so_and_how_to_wake_it(site: Site) -> None:
    await site.up()
    await site.down()
    answer = await site.client.get(f"/files/{CHAT}/uploads/note.txt")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == ASLEEP
    assert "The operator stopped it." in answer.json()["detail"]
    assert "wake=1" in answer.json()["detail"]
    assert (await site.client.get(f"/terminal/{CHAT}/status")).json()["sandbox"] == "stopped"
    assert (await site.client.get("/files/nobody/archive")).json()["type"] == NO_SANDBOX
    assert (await site.client.get("/terminal/nobody/status")).json()["sandbox"] == "none"


async def test_a_tab_gets_a_button_that_wakes_and_leads_to_the_plain_address(site: Site) -> None:
    await site.up()
    await site.down()
    tab = {"Accept": "text/html,*/*", "Sec-Fetch-Dest": "document"}
    address = f"/files/{CHAT}/uploads/note.txt?download=1"
    page = await site.client.get(address, headers=tab)
    assert (page.status_code, page.headers["content-type"]) == (409, "text/html; charset=utf-8")
    assert "Wake it and open note.txt" in page.text
    assert await site.state() == "stopped"
    way = re.search(r'href="\./([^"]+)"', page.text)
    assert way
    clicked = await site.client.get(f"/files/{CHAT}/uploads/{way[1].replace('&amp;', '&')}", headers=tab)
    assert (clicked.status_code, clicked.headers["location"]) == (303, "./note.txt?download=1")
    assert await site.state() == "running"
    assert (await site.client.get(address, headers=tab)).content == b"note"


async def test_a_picture_or_a_script_gets_the_problem_not_the_page(site: Site) -> None:
    await site.up()
    await site.down()
    asked = {"Accept": "text/html,*/*", "Sec-Fetch-Dest": "image"}
    answer = await site.client.get(f"/files/{CHAT}/uploads/note.txt", headers=asked)
    assert answer.headers["content-type"] == "application/problem+json"
