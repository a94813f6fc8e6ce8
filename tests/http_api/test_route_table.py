"""The table of routes against the service: who may use each URL, and that nothing else is served.

Of the credentials that open nothing anywhere, one route is asked with some, and the next one with others; CUBICLE_LONG=1
asks every route with all.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.app import running
from cubicle.chat.access import Access
from cubicle.chat.authentication import Who
from cubicle.chat.links import Links
from cubicle.core import signing
from cubicle.core.api_keys import ApiKey, KeyFile
from cubicle.core.chat import Chat
from cubicle.core.identity import LinkAccess, Role
from cubicle.core.keys import KeyRing
from cubicle.core.signing import LinkGrant, SignIn
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
_PAST = int(time.time()) - 3600
_PARTS = 1 if os.environ.get("CUBICLE_LONG") else 4


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

    async def lets_in(self, row: Row, shown: Shown, *, looks: bool) -> bool:
        """Asked by a method that no route has: nothing is done, and 405 says that it was let in.

        `looks`: whoever may only look asks by the method of a route that changes something, and is told 403.
        """
        path = re.sub(r"\{(\w+)\}", lambda m: {"chat": CHAT, "pid": "4", "port": "4"}.get(m[1], "x"), row.template)
        path += ("/x" if row.mount else "") + shown.query
        refused = looks and row.who is Who.CHAT and not row.for_viewers
        if row.methods == WEBSOCKET:
            code = await _close_code(self.url.replace("http", "ws") + path, shown.headers)
            assert (code == 4403) is refused, (row, code)
            return code not in (4401, 4403)
        method = row.methods.split()[0] if refused else "PATCH"
        status = (await self.client.request(method, path, headers=shown.headers)).status_code
        self.client.cookies.clear()
        assert status in ((403,) if refused else (401, 405)), (row, status)
        return status == 405


async def _close_code(url: str, headers: dict[str, str]) -> int | None:
    try:
        async with asyncio.timeout(30), connect(url, proxy=None, additional_headers=headers) as socket:
            await socket.recv()
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None
    return None


def _key_file(path: Path) -> None:
    file = KeyFile.empty()
    for key, record in (
        ("customer-key", ApiKey("acme1", "acme")),
        ("operator-key", ApiKey("oper1", "main", Role.OPERATOR)),
        ("expired-key", ApiKey("gone1", "acme", expires=_PAST)),
        ("revoked-key", ApiKey("gone2", "acme", revoked=_PAST)),
        ("revoked-operator-key", ApiKey("gone3", "main", Role.OPERATOR, revoked=_PAST)),
    ):
        file = file.with_key(key, record)
    path.write_text(file.text())


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    _key_file(folder / "keys.json")
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
        yield Site(url, client, {name: shown async for name, shown in _credentials(client, settings)})
    await empty(make_driver(settings))


async def _credentials(client: httpx.AsyncClient, settings: Settings) -> AsyncIterator[tuple[str, Shown]]:
    yield "nothing", Shown()
    yield "metrics token", Shown({"Authorization": "Bearer a-metrics-token"})
    for name, key in (
        ("wrong key", "wrong"),
        ("expired key", "expired-key"),
        ("revoked key", "revoked-key"),
        ("revoked operator's key", "revoked-operator-key"),
        ("key in another scheme", ""),
    ):
        yield name, Shown({"Authorization": f"Bearer {key}" if key else "Basic a-good-key"})
    for name, key in (("key", "a-good-key"), ("operator's key", "operator-key"), ("customer's key", "customer-key")):
        bearer = {"Authorization": f"Bearer {key}"}
        yield name, Shown(bearer)
        await client.post("/login", data={"key": key})
        yield f"sign-in by {name}", Shown({"Cookie": f"cubicle-login={client.cookies['cubicle-login']}"})
        client.cookies.clear()
    links = (await asyncio.to_thread(Access._open, settings, settings.data_dir / "elsewhere")).links
    for name, who, expires in (
        ("sign-in by an expired key", SignIn("acme", key_id="gone1"), None),
        ("sign-in by a revoked key", SignIn("acme", key_id="gone2"), None),
        ("sign-in of another role", SignIn("main", Role.USER, "oper1"), None),
        ("sign-in of another tenant", SignIn("main", Role.OPERATOR, "acme1"), None),
        ("sign-in that ended", SignIn("acme", key_id="acme1"), _PAST),
        ("sign-in without a key", SignIn("main", Role.OPERATOR), None),
    ):
        yield name, Shown({"Cookie": f"cubicle-login={links.sign_in(who, expires)}"})
    async for name, key in _link_keys(client, links):
        yield name, Shown(query=f"?key={key}")
        yield f"cookie of {name}", Shown({"Cookie": f"cubicle-x={key}"})


async def _link_keys(client: httpx.AsyncClient, links: Links) -> AsyncIterator[tuple[str, str]]:
    """Keys of links, by their names."""
    bearer = {"Authorization": "Bearer a-good-key"}

    async def in_prompt(chat: str) -> str:
        prompt = await client.get("/system-prompt", params={"chat_id": chat}, headers=bearer)
        return prompt.text.split("?key=", 1)[1].split()[0].strip("`)")

    async def made(access: str, **more: str) -> tuple[str, str]:
        answer = await client.post(f"/api/links/{CHAT}", params={"access": access, **more}, headers=bearer)
        assert answer.status_code == 201
        return answer.json()["id"], answer.json()["url"].partition("?key=")[2]

    before = links.key(Chat(CHAT))
    assert (await client.delete(f"/api/links/{CHAT}", headers=bearer)).status_code == 204
    yield "link from before all were revoked", before
    id, key = await made("control")
    assert (await client.delete(f"/api/links/{CHAT}/{id}", headers=bearer)).status_code == 204
    yield "revoked link", key
    yield "view link", (await made("view"))[1]
    control = (await made("control"))[1]
    yield "control link", control
    yield "link of another chat", await in_prompt(OTHER)
    yield "customer's link to its own chat of this id", links.key(Chat(CHAT, "acme"), LinkAccess.CONTROL)
    grant = LinkGrant(Chat(CHAT), LinkAccess.CONTROL, signing.mark_of(control))
    yield "expired link", signing.sign(links.signing("main"), grant, _PAST)
    yield "link of a tenant without keys", links.key(Chat(CHAT, "nobody"), LinkAccess.CONTROL)
    yield "link of another service", Links(b"x" * 32, "http://x", KeyRing({"a-good-key": "main"})).key(Chat(CHAT))


KEYS = {"key", "operator's key", "customer's key"}
SIGN_INS = {f"sign-in by {key}" for key in KEYS}
_VIEW, _CONTROL = {"view link"}, {"control link", "customer's link to its own chat of this id"}
_NO_LINKS = {
    "link from before all were revoked", "revoked link", "expired link", "link of another chat",
    "link of a tenant without keys", "link of another service",
}  # fmt: skip


def with_cookies(links: set[str]) -> set[str]:
    return links | {f"cookie of {link}" for link in links}


VIEW, CONTROL = with_cookies(_VIEW), with_cookies(_CONTROL)
NOTHING = {
    "nothing", "wrong key", "expired key", "revoked key", "revoked operator's key", "key in another scheme",
    "sign-in by an expired key", "sign-in by a revoked key", "sign-in of another role", "sign-in of another tenant",
    "sign-in that ended", "sign-in without a key", *with_cookies(_NO_LINKS),
}  # fmt: skip
OPERATORS = {"key", "operator's key", "sign-in by key", "sign-in by operator's key"}
ALL = KEYS | SIGN_INS | VIEW | CONTROL | NOTHING | {"metrics token"}
LET_IN: dict[Who, set[str]] = {
    Who.ANYBODY: ALL,
    Who.CAPABILITY: ALL,
    Who.BEARER: KEYS,
    Who.KEY: KEYS | SIGN_INS,
    Who.OPERATOR: OPERATORS,
    Who.METRICS: OPERATORS | {"metrics token"},
    Who.CHAT: KEYS | SIGN_INS | CONTROL,
}


def tried(names: Iterable[str], row: Row, everywhere: set[str]) -> set[str]:
    """Those of these credentials that this route is asked with: those for everywhere, and a part of the others in turn.

    The routes that the same people may use meet all of them together.
    """
    alike = [each for each in TABLE.rows if each.who is row.who]
    parts, number = min(_PARTS, len(alike)), alike.index(row)
    return everywhere | {name for at, name in enumerate(sorted(set(names) - everywhere)) if (at + number) % parts == 0}


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: f"{row.methods} {row.template}")
async def test_a_route_opens_to_those_that_the_table_names_and_to_nobody_else(site: Site, row: Row) -> None:
    assert set(site.credentials) == ALL
    names = tried(ALL, row, ALL - NOTHING | {"nothing", "wrong key"})
    found = {name for name in names if await site.lets_in(row, site.credentials[name], looks=name in VIEW)}
    assert found == names & (LET_IN[row.who] | (VIEW if row.for_viewers else set()))


def test_each_credential_that_opens_nothing_is_tried_where_each_may_enter() -> None:
    for who in {row.who for row in TABLE.rows}:
        assert {name for row in TABLE.rows if row.who is who for name in tried(ALL, row, set())} == ALL


def test_the_table_and_the_credentials_make_more_than_a_thousand_cases() -> None:
    assert len(TABLE.rows) * len(ALL) > 1000


def test_who_may_only_look_changes_nothing() -> None:
    changing = {row.handler for row in ROWS if row.who is Who.CHAT and not row.for_viewers}
    assert changing == {
        "uploads.nameless", "uploads.save", "uploads.remove", "browser.json", "browser.page_socket",
        "browser.browser_socket", "browser.own_socket", "terminal.resume", "terminal.kill", "ports.share",
        "ports.revoke", "ports.forward", "undo.undo", "file_edits.save", "file_edits.rename", "file_edits.remove",
    }  # fmt: skip


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
