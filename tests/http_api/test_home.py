"""The home page's own routes: who sees which chats, who is told the key, that it tells by itself, and the demo."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle import settings
from cubicle.app import running
from cubicle.browser import last_pictures
from cubicle.browser.frame_file import facts_of
from cubicle.browser.frame_store import FrameStore
from cubicle.browser.last_pictures import LastPictures
from cubicle.chat.activity import Activity
from cubicle.chat.clients import MAX_CHATS, Clients
from cubicle.core.api_keys import ApiKey, KeyFile
from cubicle.core.chat import Chat
from cubicle.core.chat_isolation import Isolation
from cubicle.core.identity import Identity
from cubicle.drivers.factory import make_driver
from cubicle.http_api.home_feed import MAX_CARDS, Watcher
from cubicle.sandbox.fleet import NoSandbox
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve

KEY = "the-operators-own-key"
OPERATOR = {"Authorization": f"Bearer {KEY}"}
ACME = {"Authorization": "Bearer customer-key"}
OTHER = {"Authorization": "Bearer another-key"}


@dataclass
class Site:
    url: str
    client: httpx.AsyncClient

    async def mcp(self, method: str, params: dict[str, Any], chat: str, who: dict[str, str]) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.client.post("/mcp", json=body, headers={"Accept": ACCEPT, "X-Chat-Id": chat, **who})
        assert answer.status_code == 200, answer.text

    async def bash(self, command: str, chat: str, who: dict[str, str], description: str = "test") -> None:
        arguments = {"command": command, "description": description}
        await self.mcp("tools/call", {"name": "bash_tool", "arguments": arguments}, chat, who)

    async def home(self, who: dict[str, str]) -> dict[str, Any]:
        answer = await self.client.get("/api/home", headers=who)
        assert answer.headers["Cache-Control"] == "no-store"
        found: dict[str, Any] = answer.json()
        return found

    @asynccontextmanager
    async def events(self, who: dict[str, str]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async with self.client.stream("GET", "/api/home/events", headers=who) as answer:
            assert answer.status_code == 200

            async def parts() -> AsyncIterator[dict[str, Any]]:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))

            yield parts()

    @asynccontextmanager
    async def person(self, key: str) -> AsyncIterator[httpx.AsyncClient]:
        """Somebody who signed in on the page."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False) as client:
            answer = await client.post("/login", data={"key": key}, headers={"Origin": self.url})
            assert answer.status_code == 303
            yield client


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    file = KeyFile.empty().with_key("customer-key", ApiKey("acme1", "acme"))
    (folder / "keys.json").write_text(file.with_key("another-key", ApiKey("othr1", "other")).text())
    chosen = settings.load(
        driver="memory",
        data_dir=folder / "data",
        pool_size=0,
        mcp_api_key=KEY,
        api_keys_file=folder / "keys.json",
        shed_memory_mb=0,
    )
    try:
        async with (
            running(chosen) as app,
            serve(app) as url,
            httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
        ):
            yield Site(url, client)
    finally:
        await empty(make_driver(chosen))


async def test_a_card_says_what_the_chat_did_last(site: Site) -> None:
    await site.bash("echo first; echo last words", "cards", ACME, "Say two things")
    card = next(card for card in (await site.home(ACME))["chats"] if card["chat"] == "cards")
    assert (card["tool"], card["description"], card["running"]) == ("bash_tool", "Say two things", False)
    assert card["output"] == "first\nlast words\n"
    assert (card["state"], card["failed"], card["picture"]) == ("running", False, 0)


async def test_nobody_sees_the_chats_clients_or_pictures_of_another_tenant(site: Site) -> None:
    await site.bash("echo a secret of acme", "acme-only", ACME, "Do something secret")
    for who in (OTHER, OPERATOR):
        told = json.dumps(await site.home(who))
        assert "acme" not in told
        assert "secret" not in told
        assert (await site.client.get("/api/home/pictures/acme-only", headers=who)).status_code == 404
    for path in ("/", "/api/home", "/api/home/events", "/api/home/connection", "/api/home/pictures/acme-only"):
        assert (await site.client.get(path)).status_code == 401
    for path in ("/api/home/key", "/api/demo"):
        assert (await site.client.post(path)).status_code == 401


async def test_a_link_of_a_chat_opens_no_home(site: Site) -> None:
    made = await site.client.post("/api/links/cards?access=control", headers=ACME)
    key = made.json()["url"].partition("key=")[2]
    for path in ("/", "/api/home", "/api/home/events", "/api/home/connection"):
        assert (await site.client.get(path, params={"key": key})).status_code == 401
    assert (await site.client.post(f"/api/demo?key={key}")).status_code == 401


def test_a_person_of_an_issuer_has_a_demo_and_chats_of_their_own() -> None:
    ann, bob = (Watcher(Identity("acme", person=name)) for name in ("ann", "bob"))
    assert (ann.demo_chat.id, bob.demo_chat.id) == ("user:ann:demo", "user:bob:demo")
    assert ann.shows(Chat("user:ann", "acme"))
    assert not ann.shows(Chat("user:bob", "acme"))
    assert not ann.shows(Chat("user:ann", "other"))
    assert Watcher(Identity("acme")).demo_chat == Chat("demo", "acme")
    assert Watcher(Identity("acme"), Isolation.SINGLE).demo_chat == Chat("default", "acme")


async def test_the_key_is_told_to_whom_it_signed_in_and_to_nobody_else(site: Site) -> None:
    async with site.person(KEY) as operator:
        page = await operator.get("/")
        connection = (await operator.get("/api/home/connection")).json()
        assert connection == {"url": f"{site.url}/mcp", "locked": True, "knows_key": True}
        assert KEY not in page.text + json.dumps(connection)
        told = await operator.post("/api/home/key", headers={"Origin": site.url})
        assert told.json() == {"key": KEY}
        assert told.headers["Cache-Control"] == "no-store"
        foreign = await operator.post("/api/home/key", headers={"Origin": "https://elsewhere.example"})
        assert foreign.status_code == 403
    async with site.person("customer-key") as customer:
        assert (await customer.get("/api/home/connection")).json()["knows_key"] is False
        assert (await customer.post("/api/home/key", headers={"Origin": site.url})).status_code == 404
    for who in (OPERATOR, ACME):  # whoever shows a key has it
        answer = await site.client.post("/api/home/key", headers=who)
        assert answer.status_code == 404
        assert KEY not in answer.text


async def test_the_first_client_is_told_by_itself_with_its_chat(site: Site) -> None:
    async with site.events(OTHER) as parts:
        first = await anext(parts)
        assert (first["client"], first["chats"]) == (None, [])
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        client = {"name": "tester", "title": "\x1b[31mA <b>tester</b>\u202e", "version": "1"}
        await site.mcp("initialize", {**hello, "clientInfo": client}, "first-chat", OTHER)
        async with asyncio.timeout(10):
            part = await anext(parts)
        assert part["client"] == {"name": "[31mA <b>tester</b>", "chat": "first-chat", "at": part["client"]["at"]}
        assert "chats" not in part, "to connect makes no sandbox"
        await site.bash("echo hello", "first-chat", OTHER)
        async with asyncio.timeout(20):
            while "chats" not in part or not part["chats"][0]["output"]:
                part = await anext(parts)
        assert part["chats"][0]["output"] == "hello\n"


async def test_to_look_wakes_nothing(site: Site) -> None:
    await site.bash("true", "sleeper", ACME)
    assert (await site.client.post("/api/sandboxes/sleeper/stop", headers=ACME)).status_code == 200
    async with site.events(ACME) as parts, asyncio.timeout(20):
        states: list[str] = []
        while states != ["stopped"]:  # one look serves all for a quarter of a second
            cards = (await anext(parts)).get("chats", [])
            states = [card["state"] for card in cards if card["chat"] == "sleeper"]
    rows = (await site.client.get("/api/sandboxes", headers=ACME)).json()["sandboxes"]
    assert [row["state"] for row in rows if row["chat"] == "sleeper"] == ["stopped"]


async def test_no_more_than_a_dozen_chats_are_shown_the_newest_first(site: Site) -> None:
    for number in range(MAX_CARDS + 2):
        await site.bash("true", f"many-{number}", ACME)
    cards = (await site.home(ACME))["chats"]
    assert len(cards) == MAX_CARDS
    assert cards[0]["chat"] == f"many-{MAX_CARDS + 1}"


async def test_the_demo_runs_in_the_tenants_own_chat_by_the_same_tools(site: Site) -> None:
    """There is no browser here: it ends where it would open one, and says so. Twice at once is once."""
    async with site.events(ACME) as parts:
        assert (await anext(parts))["demo"]["state"] == "none"
        both = await asyncio.gather(*(site.client.post("/api/demo", headers=ACME) for _ in range(2)))
        assert [answer.status_code for answer in both] == [202, 202]
        assert {answer.json()["chat"] for answer in both} == {"demo"}
        seen = []
        async with asyncio.timeout(90):
            while not seen or seen[-1]["state"] == "playing":
                part = await anext(parts)
                seen += [part["demo"]] if "demo" in part else []
    assert seen[-1]["state"] == "failed"
    assert seen[-1]["says"].startswith("Open the page in the browser")
    again = await site.client.post("/api/demo", headers=ACME)
    assert (again.status_code, again.headers["Retry-After"].isdigit()) == (429, True)
    card = next(card for card in (await site.home(ACME))["chats"] if card["chat"] == "demo")
    assert card["failed"] is True
    replayed = await site.client.get("/api/chats/demo/replay", headers=ACME)
    assert replayed.text.count('\\"tool\\"') + replayed.text.count('"tool"') >= 5, "the journal has its calls"
    assert (await site.home(OTHER))["demo"]["state"] == "none"
    assert "demo" not in [card["chat"] for card in (await site.home(OTHER))["chats"]]


async def test_clients_are_bounded_and_forgotten_with_their_chat() -> None:
    clients = Clients()
    for number in range(MAX_CHATS + 10):
        clients.note(Chat(f"c{number}"), "x" * 100_000)
    newest = clients.newest(lambda chat: True)
    assert newest is not None
    assert (newest.chat.id, len(newest.name)) == (f"c{MAX_CHATS + 9}", 60)
    assert clients.newest(lambda chat: chat.id == "c3") is None
    clients.forget(newest.chat)
    again = clients.newest(lambda chat: True)
    assert again is not None
    assert again.chat.id == f"c{MAX_CHATS + 8}"


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("/9j/4AAQ", True),
        ("", False),
        ("not base64!", False),
        ("PHNjcmlwdD4=", False),
        ("/9j/" + "A" * 400_000, False),
    ],
)
def test_only_a_small_jpeg_is_taken_for_a_picture(text: str, is_kept: bool) -> None:
    assert (last_pictures._jpeg(text) is not None) is is_kept


async def test_a_chat_that_is_stopped_has_the_newest_picture_of_its_replay(tmp_path: Path) -> None:
    frames = FrameStore(tmp_path, limit=1_000_000, total=1_000_000)
    await asyncio.to_thread(frames.open)
    chat, other = Chat("one"), Chat("one", "another tenant")
    frames.admit(chat)
    facts = facts_of(1280, 800, "https://example.org/", "A page")
    for at, end in ((1000.0, b"old"), (1003.0, b"new")):
        await asyncio.to_thread(frames.add, chat, at, facts, b"\xff\xd8\xff" + end)
    again = FrameStore(tmp_path, limit=1_000_000, total=1_000_000)  # the service was started again
    await asyncio.to_thread(again.open)
    for store in (frames, again):
        pictures = LastPictures(_NoFleet(), store)  # type: ignore[arg-type]
        assert pictures.taken(chat) == 1003.0
        assert await pictures.of(chat) == b"\xff\xd8\xffnew"
        assert (pictures.taken(other), await pictures.of(other)) == (0.0, None)
    await asyncio.to_thread(again.forget, chat)
    assert (pictures.taken(chat), await pictures.of(chat)) == (0.0, None)


async def test_a_chat_is_pictured_again_only_after_something_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    pictures = LastPictures(_NoFleet(), FrameStore(tmp_path, limit=0, total=0))  # type: ignore[arg-type]
    chat = Chat("one")
    assert pictures.is_due(chat, 0)
    assert not await pictures.take(chat)
    assert not pictures.is_due(chat, 1000.0)
    now = 1010.0
    assert pictures.is_due(chat, 1001.0)
    assert not pictures.is_due(chat, 900.0)
    pictures.forget(chat)
    assert pictures.is_due(chat, 0)


class _NoFleet:
    def look(self, chat: Chat) -> Any:
        raise NoSandbox("none")


async def test_the_newest_call_of_a_chat_is_the_one_that_began_last() -> None:
    activity, chat = Activity(), Chat("one")
    assert await activity.newest(chat) is None
    activity.begin(chat, "bash_tool", {"description": "first"})
    second = activity.begin(chat, "view", {"description": "second"})
    activity.tell_output(chat, second.id, "seen", 0)
    newest = await activity.newest(chat)
    assert newest is not None
    assert (newest.begun["description"], newest.output, newest.ended) == ("second", "seen", None)
