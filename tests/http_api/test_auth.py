"""Who may come in, and to what: the whole service with a key, over HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle import log
from cubicle.app import running
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_driver
from cubicle.settings import Settings
from tests.support.service import serve

KEY = {"Authorization": "Bearer a-good-key"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(  # type: ignore[call-arg]
        _env_file=None,
        driver="memory",
        data_dir=tmp_path_factory.mktemp("access"),
        pool_size=0,
        mcp_api_key="a-good-key",
        wrong_keys_per_minute=0,
        prompt_links="control",
    )


@pytest.fixture(scope="module")
async def url(settings: Settings) -> AsyncIterator[str]:
    async with running(settings) as app, serve(app) as url:
        yield url
    driver = make_driver(settings)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that nobody has used: without cookies."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:
        yield client


async def signed(client: httpx.AsyncClient, chat: str) -> str:
    """The signature in the links of a chat's prompt."""
    prompt = (await client.get("/system-prompt", params={"chat_id": chat}, headers=KEY)).text
    return prompt.split("?key=", 1)[1].split()[0].strip("`)")


@pytest.mark.parametrize(
    "path",
    [
        *("/mcp-info", "/system-prompt", "/skill-list", "/skill-mounts", "/api/sandboxes", "/admin", "/nothing"),
        *("/files/one/", "/files/one/archive", "/preview/one/", "/browser/one/", "/browser/one/status"),
        *("/terminal/one/", "/terminal/one/status", "/api/uploads/one", "/api/chats/one/events"),
    ],
)
async def test_without_a_key_nothing_opens(client: httpx.AsyncClient, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "cubicle-login=1.2.3; cubicle-x=4.5.6"}):
        answer = await client.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await client.get(path + "?key=1797379200.bWFpbg.AAAAAAAAAAAAAAAAAAAAAA")).status_code == 401


async def test_health_and_assets_need_no_key(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).json() == {"status": "healthy"}
    assert (await client.get("/login")).status_code == 200


async def test_the_isolation_report_opens_to_the_operator_alone(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"customer-key": "acme"}')
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None,
        driver="memory",
        data_dir=tmp_path / "data",
        pool_size=0,
        mcp_api_key="a-good-key",
        api_keys_file=keys,
    )
    async with running(settings) as app, serve(app) as url:
        for path in ("/health/walls", "/health/walls/", "/health/"):
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:
                assert (await client.get(path)).status_code == 401, path
        for key, status in (("a-good-key", 200), ("customer-key", 401)):
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:
                bearer = {"Authorization": f"Bearer {key}"}
                assert (await client.get("/health/walls", headers=bearer)).status_code == status
                page = await client.get("/health/walls", headers={"Accept": "text/html"})
                assert (page.status_code, "text/html" in page.headers["content-type"]) == (401, True)
                assert (await client.post("/login", data={"key": key})).status_code == 303
                report = await client.get("/health/walls")
                assert report.status_code == status
                assert status == 401 or report.json()["strength"] == "none"


async def test_the_log_names_tenant_and_user_of_every_request(client: httpx.AsyncClient) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    user = {"X-User-Email": "ann@example.org"}
    key = await signed(client, "logged")
    asked = [
        ("/api/sandboxes", KEY | user, "ann@example.org", "main"),
        ("/files/logged/", KEY | user, "ann@example.org", "main"),
        ("/system-prompt?chat_id=logged&user_email=bob@example.org", KEY, "bob@example.org", "main"),
        (f"/files/logged/?key={key}", user, None, "main"),  # whoever has just a link names nobody
        ("/admin", user, None, None),
        ("/health/walls", user, None, None),
    ]
    try:
        log.configure("json", stream)
        for number, (path, headers, _, _) in enumerate(asked):
            await client.get(path, headers={**headers, "X-Request-Id": f"asked-{number}"})
            client.cookies.clear()
        async with asyncio.timeout(60):
            while stream.getvalue().count('"event": "request"') < len(asked):
                await asyncio.sleep(0.01)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    lines = {line["request"]: line for line in map(json.loads, stream.getvalue().splitlines()) if "path" in line}
    for number, (path, _, user_logged, tenant) in enumerate(asked):
        line = lines[f"asked-{number}"]
        assert (line.get("user"), line.get("tenant")) == (user_logged, tenant), path
        assert line.get("chat") == ("logged" if "logged" in path else None), path


async def test_a_signed_link_opens_its_chat_and_nothing_else(client: httpx.AsyncClient) -> None:
    await client.post("/api/uploads/one/a.txt", content=b"mine", headers=KEY)
    await client.post("/api/uploads/two/a.txt", content=b"not yours", headers=KEY)
    key = await signed(client, "one")
    assert (await client.get("/files/one/a.txt", params={"key": key})).text == "mine"
    client.cookies.clear()
    for path in (
        "/files/two/a.txt",
        "/preview/two/",
        "/api/sandboxes",
        "/mcp-info",
        "/system-prompt",
        "/terminal/two/status",
    ):
        assert (await client.get(path, params={"key": key})).status_code == 401, path
    assert (await client.post("/mcp", params={"key": key}, json={})).status_code == 401


def misleading(path: str) -> list[str]:
    """The address of chat `two`, with chat `one` before it for whoever takes an encoded slash for a slash."""
    before, _, behind = path.partition("two")
    first, *more = before.strip("/").split("/")
    heads = [f"/{first}%2Fone/", f"/{first}%2fone/", f"/{first}%252Fone/", f"/{first}/one%2F", f"/{first}/one%2F..%2F"]
    if more:
        second = more[0]
        heads = [f"/{first}%2F{second}/one/", f"/{first}%2F{second}%2Fone/", f"/{first}/{second}%2Fone/"]
    return [f"{head}two{behind}" for head in heads] + [f"/{first}//{'/'.join(more)}one%2F..%2Ftwo{behind}"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", f"/files/two/{rest}") for rest in ("", "a.txt", "uploads/a.txt", "archive")),
        *(("GET", f"/preview/two/{rest}") for rest in ("", "a.txt")),
        *(("GET", path) for path in ("/browser/two/status", "/terminal/two/status", "/terminal/two/processes")),
        *((method, "/api/uploads/two/a.txt") for method in ("POST", "PUT", "DELETE")),
        *(("GET", path) for path in ("/api/uploads/two", "/api/uploads/two/", "/api/chats/two/events")),
        *(("POST", path) for path in ("/terminal/two/start-ttyd", "/browser/two/start")),
    ],
)
async def test_an_encoded_slash_leads_a_link_to_no_other_chat(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    await client.post("/api/uploads/one/a.txt", content=b"mine", headers=KEY)
    await client.post("/api/uploads/two/a.txt", content=b"not yours", headers=KEY)
    key = await signed(client, "one")
    for way in misleading(path):
        for query, headers in ((f"?key={key}", {}), ("", {"Cookie": f"cubicle-one={key}"})):
            answer = await client.request(method, way + query, content=b"changed", headers=headers)
            if answer.status_code == 200:  # the page of chat `one`, or its file of that name
                assert "/preview%2f" not in way.lower()
                assert "not yours" not in answer.text
                assert '"name":"two"' not in answer.text
            else:
                assert answer.status_code in (400, 401, 404, 405), way
            client.cookies.clear()
    assert (await client.get("/files/two/a.txt", headers=KEY)).text == "not yours"
    assert (await client.get("/terminal/two/status", headers=KEY)).json()["running"] is False


async def test_what_a_link_shows_carries_the_same_link_on(client: httpx.AsyncClient) -> None:
    await client.post("/api/uploads/one/a.txt", content=b"mine", headers=KEY)
    key = await signed(client, "one")
    (entry,) = (await client.get("/files/one/uploads/", params={"key": key})).json()["entries"]
    assert entry["url"].endswith(f"?key={key}")
    (entry,) = (await client.get("/files/one/uploads/")).json()["entries"]  # by the cookie
    assert entry["url"].endswith(f"?key={key}")


@pytest.mark.parametrize("path", ["/system-prompt", "/skill-list", "/skill-mounts", "/mcp-info", "/health/walls"])
async def test_a_person_who_signed_in_may_ask_what_a_program_with_the_key_may(
    client: httpx.AsyncClient, path: str
) -> None:
    assert (await client.post("/login", data={"key": "a-good-key"})).status_code == 303
    assert (await client.get(path)).status_code == 200


async def test_the_first_signed_visit_leaves_a_cookie_for_that_chat(client: httpx.AsyncClient) -> None:
    await client.post("/api/uploads/one/a.txt", content=b"mine", headers=KEY)
    key = await signed(client, "one")
    first = await client.get("/preview/one/a.txt", params={"key": key})
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert (await client.get("/files/one/a.txt")).text == "mine"
    assert (await client.get("/files/two/")).status_code == 401


TAB = {"Sec-Fetch-Dest": "document", "Accept": "text/html"}


@pytest.mark.parametrize(
    ("path", "query", "clean"),
    [
        ("/preview/one/", "?key={}", "./"),
        ("/preview/one", "?key={}", "./one"),
        ("/preview/one/sub/a%2Fb%20%C3%BC.md", "?embed=1&key={}&monkey=1", "./a%2Fb%20%C3%BC.md?embed=1&monkey=1"),
        ("/preview/one/sub//evil.example", "?key={}", "./evil.example"),
        ("/files/one/a.txt", "?key={}&download=1", "./a.txt?download=1"),
        ("/browser/one/", "?key={}", "./"),
        ("/terminal/one/", "?key={}", "./"),
    ],
)
async def test_a_tab_is_led_on_to_an_address_that_does_not_show_the_signature(
    client: httpx.AsyncClient, path: str, query: str, clean: str
) -> None:
    key = await signed(client, "one")
    answer = await client.get(path + query.format(key), headers=TAB)
    assert (answer.status_code, answer.headers["location"]) == (303, clean)
    assert answer.headers["cache-control"] == "no-store"
    assert key in answer.headers["set-cookie"]
    assert (await client.get("/preview/one/", headers=TAB)).status_code == 200
    again = await client.get(path + query.format("1.2.3"), headers=TAB)
    assert again.headers["location"] == clean, "who has come in already needs no key, not even a right one"


@pytest.mark.parametrize("destination", [None, "iframe", "empty"])
async def test_frames_and_programs_keep_the_signature_as_no_cookie_may_reach_them(
    client: httpx.AsyncClient, destination: str | None
) -> None:
    key = await signed(client, "one")
    headers = {"Sec-Fetch-Dest": destination} if destination else {}
    for path in ("/preview/one/", "/files/one/"):
        assert (await client.get(path, params={"key": key}, headers=headers)).status_code == 200
        client.cookies.clear()
    for path in ("/terminal/one/status", "/browser/one/status"):
        assert (await client.get(path, params={"key": key}, headers=TAB)).status_code == 200


async def test_the_cookie_lives_as_long_as_the_link(client: httpx.AsyncClient) -> None:
    before = int(time.time())
    key = await signed(client, "one")
    cookie = (await client.get("/preview/one/", params={"key": key})).headers["set-cookie"]
    left = int(re.search(r"Max-Age=(\d+)", cookie)[1])  # type: ignore[index]
    assert before + left <= int(key.split(".")[0]) <= time.time() + left


@pytest.mark.parametrize("damage", [lambda key: key[:-1], lambda key: "0" + key[1:], lambda key: ""])
async def test_a_link_that_opens_nothing_says_so_and_what_to_do(
    client: httpx.AsyncClient, damage: Callable[[str], str]
) -> None:
    damaged = damage(await signed(client, "one"))
    page = await client.get("/preview/one/", params={"key": damaged}, headers=TAB)
    assert page.status_code == 401
    assert "This link does not work" in page.text
    assert "This link does not work" not in (await client.get("/preview/one/", headers=TAB)).text


async def test_a_person_signs_in_with_the_key(client: httpx.AsyncClient) -> None:
    page = await client.get("/admin", headers={"Accept": "text/html"})
    assert page.status_code == 401
    assert page.headers["content-type"].startswith("text/html")
    wrong = await client.post("/login", data={"key": "wrong", "next": "/admin"})
    assert wrong.status_code == 401
    right = await client.post("/login", data={"key": "a-good-key", "next": "/preview/one/"})
    assert (right.status_code, right.headers["location"]) == (303, "./preview/one/")
    assert (await client.get("/admin")).status_code == 200
    assert (await client.get("/api/sandboxes")).status_code == 200


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:x", ""])
async def test_signing_in_never_leads_to_another_site(client: httpx.AsyncClient, target: str) -> None:
    answer = await client.post("/login", data={"key": "a-good-key", "next": target})
    assert answer.headers["location"] == "./"


@asynccontextmanager
async def other_service(folder: Path, **chosen: Any) -> AsyncIterator[str]:
    other = Settings(_env_file=None, driver="memory", data_dir=folder, pool_size=0, **chosen)  # type: ignore[call-arg]
    async with running(other) as app, serve(app) as url:
        yield url
    driver = make_driver(other)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)


@pytest.mark.parametrize("known_by", ["a sign-in", "a link"])
async def test_a_link_of_another_tenant_works_and_takes_no_chat_of_the_same_id_over(
    client: httpx.AsyncClient, tmp_path: Path, known_by: str
) -> None:
    (tmp_path / "keys").write_text('{"acme-secret": "acme", "beta-secret": "beta"}')
    async with other_service(tmp_path, api_keys_file=tmp_path / "keys") as url:
        keys = {}
        for tenant in ("acme", "beta"):
            bearer = {"Authorization": f"Bearer {tenant}-secret"}
            await client.post(f"{url}/api/uploads/room/a.txt", content=tenant.encode(), headers=bearer)
            (entry,) = (await client.get(f"{url}/files/room/uploads/", headers=bearer)).json()["entries"]
            keys[tenant] = {"key": entry["url"].partition("?key=")[2]}
        address = f"{url}/files/room/a.txt"
        if known_by == "a sign-in":
            await client.post(f"{url}/login", data={"key": "beta-secret"})
        else:
            assert (await client.get(address, params=keys["beta"])).text == "beta"
        assert (await client.get(address, params=keys["acme"])).text == "acme"
        page = await client.get(f"{url}/preview/room/a.txt", params=keys["acme"], headers=TAB)
        assert page.status_code == 200  # not led on to an address that would be beta's
        assert "set-cookie" not in page.headers
        assert (await client.get(address)).text == "beta"
        assert (await client.get(address, params=keys["acme"])).text == "acme"


async def test_with_one_chat_for_all_a_preview_shows_that_chats_files(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with other_service(tmp_path, single_user_mode="true") as url:
        await client.post(f"{url}/api/uploads/any/x.html", content=b"<p>seen")
        granted = (await client.post(f"{url}/api/chats/any/raw/uploads/x.html")).json()
        assert (await client.get(f"{url}/{granted['url']}")).text == "<p>seen"


async def test_nothing_is_left_of_a_chat_that_was_removed(tmp_path: Path) -> None:
    """Neither in memory nor on disk: budget, egress allowance and activity."""
    chat, data = Chat("removed"), tmp_path / "data"
    records = [data / "agents" / chat.digest, data / "egress" / "allowances" / chat.digest]
    async with (
        other_service(data) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        call = {"name": "bash_tool", "arguments": {"command": "true", "description": "x"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        accept = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat.id, "X-User-Email": "a@b.example"}
        assert (await client.post("/mcp", json=body, headers=accept)).status_code == 200
        (row,) = (await client.get("/api/sandboxes")).json()["sandboxes"]
        assert (row["last_tool"], row["user"]) == ("bash_tool", "a@b.example")
        for record in records:  # as they are after use
            await asyncio.to_thread(record.write_bytes, b"{}")
        assert (await client.delete(f"/api/sandboxes/{chat.id}")).status_code == 204
        assert [record.name for record in records if record.exists()] == []
        assert (await client.post(f"/api/uploads/{chat.id}/a.txt", content=b"a")).status_code == 201
        (row,) = (await client.get("/api/sandboxes")).json()["sandboxes"]
        assert (row["last_tool"], row["user"]) == ("", "")


async def test_the_operator_sees_stops_and_removes_sandboxes(client: httpx.AsyncClient) -> None:
    async def rows() -> dict[str, dict[str, Any]]:
        answer = await client.get("/api/sandboxes", headers=KEY)
        return {row["chat"]: row for row in answer.json()["sandboxes"]}

    async def states() -> dict[str, str]:
        return {chat: row["state"] for chat, row in (await rows()).items()}

    await client.post("/api/uploads/one/a.txt", content=b"mine", headers=KEY)
    assert (await states())["one"] == "running"
    assert (await client.post("/api/sandboxes/one/stop", headers=KEY)).json() == {"stopped": True, "chat": "one"}
    assert (await states())["one"] == "stopped"
    stopped = (await rows())["one"]
    assert stopped["age_seconds"] >= stopped["idle_seconds"] >= 0
    key = await signed(client, "one")
    assert (await client.delete("/api/sandboxes/one", params={"key": key})).status_code == 401
    assert (await client.delete("/api/sandboxes/one", headers=KEY)).status_code == 204
    assert (await client.delete("/api/sandboxes/one", headers=KEY)).status_code == 404
    assert "one" not in await states()
    told = (await client.get("/api/sandboxes", headers=KEY)).json()
    assert [row["chat"] for row in told["trash"] if row["chat"] == "one"] == ["one"]
    assert told["totals"]["in_trash"] >= 1
    assert (await client.get("/api/uploads/one", headers=KEY)).json()[
        "files"
    ] == []  # the id is free, and nothing is there


async def test_the_operator_sees_who_did_what_last(client: httpx.AsyncClient) -> None:
    headers = KEY | {"Accept": "application/json, text/event-stream", "X-Chat-Id": "seen", "X-User-Email": "ann@x.org"}
    call = {"name": "view", "arguments": {"path": "/home/assistant"}}
    await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}, headers=headers)

    async def row() -> dict[str, object]:
        rows = (await client.get("/api/sandboxes", headers=KEY)).json()["sandboxes"]
        return next(row for row in rows if row["chat"] == "seen")

    assert {"user": "ann@x.org", "last_tool": "view"}.items() <= (await row()).items()
    assert (await row())["memory_bytes"] != 0


async def test_a_tool_call_is_seen_in_the_chats_events(client: httpx.AsyncClient) -> None:
    headers = KEY | {"Accept": "application/json, text/event-stream", "X-Chat-Id": "one"}
    call = {"name": "bash_tool", "arguments": {"command": "echo seen", "description": "Say it"}}
    await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}, headers=headers)
    heard = []
    async with asyncio.timeout(60), client.stream("GET", "/api/chats/one/events", headers=KEY) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                heard.append(json.loads(line[6:]))
                if heard[-1]["type"] == "end":
                    break
    assert [event["description"] for event in heard if event["type"] == "call"] == ["Say it"]
    assert "".join(event["text"] for event in heard if event["type"] == "output") + heard[-1]["result"] == "seen\n"


async def test_a_foreign_page_can_change_nothing(client: httpx.AsyncClient) -> None:
    for origin in ("https://evil.example", "null"):
        answer = await client.post("/api/uploads/foreign/a.txt", content=b"x", headers={"Origin": origin, **KEY})
        assert answer.status_code == 403
        answer = await client.post("/login", data={"key": "a-good-key"}, headers={"Origin": origin})
        assert answer.status_code == 403
    assert (await client.get("/api/uploads/foreign", headers=KEY)).json() == {"files": []}


async def test_the_instructions_are_rendered_fresh_for_each_initialize(client: httpx.AsyncClient) -> None:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    for name in ("Ann", "Bob"):
        headers = {**KEY, "X-Chat-Id": "fresh", "X-User-Name": name, "Accept": "application/json, text/event-stream"}
        answer = await client.post("/mcp", json=body, headers=headers)
        told = json.loads(answer.text.split("data: ", 1)[1])["result"]["instructions"]
        assert f'"{name}"' in told
        assert '- chat: "fresh"' in told
