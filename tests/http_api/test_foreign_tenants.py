"""The table of routes, asked for real by those whose chat it is not: nothing of another tenant is shown or changed.

Both tenants have a chat of the same id. Every route is asked with its own methods and with the names of what the owner
has: its files, links, calls and sandbox.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import ANY_METHOD, WEBSOCKET, Row
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.service import ACCEPT, messages, serve

CHAT, MARK = "room", "what-only-the-owner-knows"
TABLE = RouteTable()
OWNER, OTHER, OPERATOR = ({"Authorization": f"Bearer {name}-key"} for name in ("zebraco", "otterco", "operator"))
WHO = ("another tenant's key", "another tenant's link", "link of another chat", "nothing")


@dataclass
class Site:
    url: str
    client: httpx.AsyncClient
    names: dict[str, str]
    """Of what the owner has, for the places in paths."""
    shown: dict[str, tuple[dict[str, str], str]]
    """Headers and query of each who asks."""

    def path(self, row: Row) -> str:
        names = {**self.names, "path": "note.txt"} if row.path.startswith("/api/uploads/") else self.names
        filled = re.sub(r"\{(\w+)\}", lambda m: names.get(m[1], "x"), row.template)
        return filled + ("/x" if row.mount else "")

    async def ask(self, method: str, row: Row, who: str) -> bytes:
        """All that comes back, head and body; of a stream the beginning."""
        headers, query = self.shown[who]
        path = self.path(row) + query
        if method == WEBSOCKET:
            return await _socket(self.url.replace("http", "ws") + path, headers)
        body = {"content": b"x" * 10} if method in ("POST", "PUT") else {}
        self.client.cookies.clear()
        async with self.client.stream(method, path, headers=headers, **body) as answer:  # type: ignore[arg-type]
            said = str(answer.headers).encode()
            if "event-stream" in answer.headers.get("content-type", ""):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        async for part in answer.aiter_bytes():
                            said += part
            else:
                said += await answer.aread()
        return said

    async def owned(self) -> dict[str, object]:
        """What the owner has, as the owner sees it."""
        get = self.client.get
        rows = (await get("/api/sandboxes", headers=OWNER)).json()["sandboxes"]
        return {
            "file": (await get(f"/files/{CHAT}/outputs/note.txt", headers=OWNER)).text,
            "upload": (await get(f"/files/{CHAT}/uploads/note.txt", headers=OWNER)).text,
            "links": (await get(f"/api/links/{CHAT}", headers=OWNER)).json(),
            "sandbox": [(row["chat"], row["state"], row["age_seconds"] is None) for row in rows],
            "uploads": (await get(f"/api/uploads/{CHAT}", headers=OWNER)).json()["files"],
        }


async def _socket(url: str, headers: dict[str, str]) -> bytes:
    said = b""
    try:
        async with asyncio.timeout(30), connect(url, proxy=None, additional_headers=headers) as socket:
            while True:
                got = await socket.recv()
                said += got if isinstance(got, bytes) else got.encode()
    except ConnectionClosed as closed:
        return said + (closed.rcvd.reason.encode() if closed.rcvd else b"")
    except InvalidHandshake:
        return said


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "keys.json").write_text(json.dumps({"zebraco-key": "zebraco", "otterco-key": "otterco"}))
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None, driver="memory", data_dir=folder / "data", pool_size=0, mcp_api_key="operator-key",
        api_keys_file=folder / "keys.json", wrong_keys_per_minute=0,
    )  # fmt: skip
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield await _made(url, client)
    await empty(make_driver(settings))


async def _made(url: str, client: httpx.AsyncClient) -> Site:
    """The owner's chat with something of everything, and what the others show."""
    upload = await client.post(f"/api/uploads/{CHAT}/note.txt", content=MARK.encode(), headers=OWNER)
    assert upload.status_code == 201
    for tool, arguments in (
        ("create_file", {"path": "/mnt/user-data/outputs/note.txt", "content": MARK}),
        ("bash_tool", {"command": f"mkdir -p ~/work; echo {MARK} | tee note.txt"}),
    ):
        params = {"name": tool, "arguments": {**arguments, "description": MARK}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {**OWNER, "Accept": ACCEPT, "X-Chat-Id": CHAT, "X-User-Email": f"{MARK}@example.com"}
        answer = messages(await client.post("/mcp", json=body, headers=headers))[-1]
        assert not answer["result"]["isError"], answer
    link = (await client.post(f"/api/links/{CHAT}?access=control&label={MARK}", headers=OWNER)).json()
    queries = {}
    for name, key, chat in (("another tenant's link", OTHER, CHAT), ("link of another chat", OWNER, "another")):
        made = await client.post(f"/api/links/{chat}?access=control", headers=key)
        queries[name] = "?" + made.json()["url"].partition("?")[2]
    async with asyncio.timeout(60), client.stream("GET", f"/api/chats/{CHAT}/events", headers=OWNER) as events:
        async for line in events.aiter_lines():
            event = json.loads(line[6:]) if line.startswith("data: ") else {}
            if event.get("type") == "call" and event["tool"] == "create_file":
                break
    names = {"chat": CHAT, "path": "outputs/note.txt", "link": link["id"], "call": event["id"], "pid": "1", "port": "4"}
    shown = {"another tenant's key": (OTHER, ""), "nothing": ({}, ""), **{n: ({}, q) for n, q in queries.items()}}
    return Site(url, client, names, shown)


CASES = [
    (method, row)
    for row in TABLE.rows
    for method in (("GET", "POST", "DELETE", "PUT") if row.methods == ANY_METHOD else row.methods.split())
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1].template}")
async def test_nobody_else_sees_or_changes_what_is_the_owners(site: Site, case: tuple[str, Row]) -> None:
    method, row = case
    before = await site.owned()
    assert MARK in str(before)
    for who in WHO:
        said = await site.ask(method, row, who)
        assert MARK.encode() not in said, (who, said[:500])
        assert b"zebraco" not in said, (who, said[:500])
    assert await site.owned() == before


async def test_the_owner_sees_it_by_the_same_requests(site: Site) -> None:
    """Otherwise the table would show nothing."""
    site.shown["owner"] = (OWNER, "")
    asked = [row for method, row in CASES if method == "GET"]
    seen = {row.template for row in asked if MARK.encode() in await site.ask("GET", row, "owner")}
    del site.shown["owner"]
    expected = {"/files/{chat}/{path}", "/api/chats/{chat}/events", "/api/chats/{chat}/replay", "/api/links/{chat}"}
    assert expected | {"/api/sandboxes"} <= seen


async def test_only_an_operator_asks_for_another_tenant(site: Site) -> None:
    for path in ("/api/sandboxes?tenant=zebraco", "/api/sandboxes?tenant=*", f"/api/links/{CHAT}?tenant=zebraco"):
        assert (await site.client.get(path, headers=OTHER)).status_code == 403, path
        assert (await site.client.get(path, headers=OPERATOR)).status_code == 200, path
    for method, path in (
        ("POST", f"/api/sandboxes/{CHAT}/stop?tenant=zebraco"),
        ("DELETE", f"/api/sandboxes/{CHAT}?tenant=zebraco"),
        ("POST", f"/api/links/{CHAT}?tenant=zebraco"),
        ("DELETE", f"/api/links/{CHAT}?tenant=zebraco"),
    ):
        assert (await site.client.request(method, path, headers=OTHER)).status_code == 403, path
    # A query does not lead an operator into the files of a tenant.
    answer = await site.client.get(f"/files/{CHAT}/outputs/note.txt?tenant=zebraco", headers=OPERATOR)
    assert MARK not in answer.text
