"""The table of routes against the service: who may use each URL, and that nothing else is served."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.app import running
from cubicle.chat.authentication import Who
from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.drivers.factory import make_driver
from cubicle.http_api.operations import OPERATIONS
from cubicle.http_api.route_docs import rewritten
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import MCP, ROWS, WEBSOCKET, ChatIn, Row
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.service import serve

CHAT, OTHER = "one", "two"
TABLE = RouteTable()
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Shown:
    """What a request shows: nothing, a key, a sign-in, a link of the chat or of another, or its cookie."""

    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""


@dataclass
class Site:
    url: str
    client: httpx.AsyncClient
    credentials: dict[str, Shown]

    async def lets_in(self, row: Row, shown: Shown) -> bool:
        """Asked by a method that no route has: nothing is done, and 405 says that it was let in."""
        path = re.sub(r"\{(\w+)\}", lambda m: {"chat": CHAT, "pid": "4", "port": "4"}.get(m[1], "x"), row.template)
        path += ("/x" if row.mount else "") + shown.query
        if row.methods == WEBSOCKET:
            return await _close_code(self.url.replace("http", "ws") + path, shown.headers) != 4401
        status = (await self.client.request("PATCH", path, headers=shown.headers)).status_code
        self.client.cookies.clear()
        assert status in (401, 405), (row, status)
        return status == 405


async def _close_code(url: str, headers: dict[str, str]) -> int | None:
    try:
        async with asyncio.timeout(30), connect(url, proxy=None, additional_headers=headers) as socket:
            await socket.recv()
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None
    return None


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "keys.json").write_text('{"customer-key": "acme"}')
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None,
        driver="memory",
        data_dir=folder / "data",
        pool_size=0,
        mcp_api_key="a-good-key",
        api_keys_file=folder / "keys.json",
        wrong_keys_per_minute=0,
        metrics_token="a-metrics-token",
    )
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Site(url, client, {name: shown async for name, shown in _credentials(client)})
    await empty(make_driver(settings))


async def _credentials(client: httpx.AsyncClient) -> AsyncIterator[tuple[str, Shown]]:
    yield "nothing", Shown()
    yield "wrong key", Shown({"Authorization": "Bearer wrong"})
    yield "metrics token", Shown({"Authorization": "Bearer a-metrics-token"})
    for name, key in (("key", "a-good-key"), ("customer's key", "customer-key")):
        bearer = {"Authorization": f"Bearer {key}"}
        yield name, Shown(bearer)
        await client.post("/login", data={"key": key})
        yield f"sign-in by {name}", Shown({"Cookie": f"cubicle-login={client.cookies['cubicle-login']}"})
        client.cookies.clear()
    for name, chat in (("link", CHAT), ("link of another chat", OTHER)):
        prompt = await client.get(
            "/system-prompt", params={"chat_id": chat}, headers={"Authorization": "Bearer a-good-key"}
        )
        key = prompt.text.split("?key=", 1)[1].split()[0].strip("`)")
        yield name, Shown(query=f"?key={key}")
        yield f"cookie of {name}", Shown({"Cookie": f"cubicle-x={key}"})


ALL = {
    "nothing", "wrong key", "metrics token", "key", "customer's key", "sign-in by key", "sign-in by customer's key",
    "link", "cookie of link", "link of another chat", "cookie of link of another chat",
}  # fmt: skip
KEYS = {"key", "customer's key"}
SIGN_INS = {"sign-in by key", "sign-in by customer's key"}
LET_IN: dict[Who, set[str]] = {
    Who.ANYBODY: ALL,
    Who.CAPABILITY: ALL,
    Who.BEARER: KEYS,
    Who.KEY: KEYS | SIGN_INS,
    Who.OPERATOR: {"key", "sign-in by key"},
    Who.METRICS: {"metrics token", "key", "sign-in by key"},
    Who.CHAT: KEYS | SIGN_INS | {"link", "cookie of link"},
}


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: f"{row.methods} {row.template}")
async def test_a_route_opens_to_those_that_the_table_names_and_to_nobody_else(site: Site, row: Row) -> None:
    assert set(site.credentials) == ALL
    found = {name for name, shown in site.credentials.items() if await site.lets_in(row, shown)}
    assert found == LET_IN[row.who]


async def test_the_table_opens_nothing_that_a_route_guards() -> None:
    for row in TABLE.rows:
        assert TABLE.who(re.sub(r"\{\w+\}", "x", row.template)) == row.who, row
    for path in ("/health/", "/health/disk/", "/nothing", "/", "/loginx", "/rawx/y", "/api/sandboxes/x", "//login"):
        assert TABLE.who(path) == Who.KEY, path
    for path in ("/login/", "/static/x/y", "/raw", "/raw/x/y"):
        assert TABLE.who(path) in (Who.ANYBODY, Who.CAPABILITY), path


def test_an_mcp_path_beneath_a_public_one_closes_and_opens_nothing_else() -> None:
    table = RouteTable(("/raw/mcp", "/health"))
    assert (table.who("/raw/mcp"), table.who("/raw/x/y"), table.who("/health")) == (
        Who.BEARER,
        Who.CAPABILITY,
        Who.BEARER,
    )


@pytest.mark.parametrize(
    ("path", "chat"),
    [
        ("/files/one/a/two", "one"),
        ("/preview/one", "one"),
        ("/browser/one/", "one"),
        ("/terminal/one/ws", "one"),
        ("/api/uploads/one/x", "one"),
        ("/api/chats/one/raw/x", "one"),
        ("/api/sandboxes/one", None),
        ("/api/one", None),
        ("/files", None),
        ("/files//one", None),
        ("/files/.one", None),
        ("/mcp", None),
    ],
)
def test_a_path_belongs_to_the_chat_in_it(path: str, chat: str | None) -> None:
    assert TABLE.chat_id(path) == chat


def test_the_links_that_the_service_makes_are_urls_of_the_table() -> None:
    links = Links(b"s" * 32, "https://box.example", KeyRing({}))
    path = links.file(Chat(CHAT), "outputs/a.txt").removeprefix("https://box.example")
    assert (TABLE.who(path), TABLE.chat_id(path), TABLE.is_in_a_tab(path)) == (Who.CHAT, CHAT, True)


def test_every_row_says_where_its_chat_id_is() -> None:
    for row in ROWS:
        assert (row.chat is ChatIn.PATH) == ("{chat}" in row.path), row
        assert row.who is not Who.CHAT or row.chat is ChatIn.PATH, row


def test_every_handler_has_an_operation() -> None:
    assert set(OPERATIONS) == {row.handler for row in ROWS if row.methods != WEBSOCKET}
    assert MCP.handler not in OPERATIONS


def test_the_page_of_the_http_api_is_current() -> None:
    page = (_ROOT / "docs" / "http.md").read_text("utf-8")
    assert page == rewritten(page), "run: make docs"
