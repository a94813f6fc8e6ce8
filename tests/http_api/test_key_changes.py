"""Keys and links that change while the service runs: who may no longer, is out within seconds; nothing opens by mistake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.app import running
from cubicle.chat.key_file import change_file
from cubicle.core.api_keys import ApiKey, KeyFile
from cubicle.core.identity import Role
from cubicle.drivers.factory import make_driver
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.service import serve

OPERATOR = {"Authorization": "Bearer operator-key"}
CUSTOMER = {"Authorization": "Bearer customer-key"}


MCP = {"Accept": "application/json, text/event-stream", "X-Chat-Id": "room"}


def call(tool: str, **arguments: str) -> dict[str, object]:
    params = {"name": tool, "arguments": {**arguments, "description": "test"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@dataclass
class Site:
    url: str
    keys: Path
    client: httpx.AsyncClient

    async def status(self, headers: dict[str, str], path: str = "/mcp-info") -> int:
        self.client.cookies.clear()
        return (await self.client.get(path, headers=headers)).status_code

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> float:
        """Seconds until it holds."""
        started = time.monotonic()
        async with asyncio.timeout(30):
            while not await condition():
                await asyncio.sleep(0.05)
        return time.monotonic() - started

    async def until_refused(self, headers: dict[str, str], path: str = "/mcp-info") -> None:
        async def refused() -> bool:
            return await self.status(headers, path) == 401

        await self.until(refused)

    async def change(self, change: Callable[[KeyFile], KeyFile]) -> None:
        await asyncio.to_thread(change_file, self.keys, change)

    async def sign_in(self, key: str) -> dict[str, str]:
        self.client.cookies.clear()
        await self.client.post("/login", data={"key": key})
        cookie = self.client.cookies["cubicle-login"]
        self.client.cookies.clear()
        return {"Cookie": f"cubicle-login={cookie}"}


def key_file() -> KeyFile:
    file = KeyFile.empty().with_key("operator-key", ApiKey("oper1", "main", Role.OPERATOR))
    return file.with_key("customer-key", ApiKey("acme1", "acme")).with_key("other-key-acme", ApiKey("acme2", "acme"))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    keys = tmp_path / "keys.json"
    keys.write_text(key_file().text())
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None,
        driver="memory",
        data_dir=tmp_path / "data",
        pool_size=0,
        api_keys_file=keys,
        wrong_keys_per_minute=0,
    )
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Site(url, keys, client)
    await empty(make_driver(settings))


async def test_a_key_that_is_added_opens_and_one_that_is_revoked_does_not_without_a_restart(site: Site) -> None:
    new = {"Authorization": "Bearer a-new-key"}
    assert await site.status(new) == 401
    await site.change(lambda file: file.with_key("a-new-key", ApiKey("new01", "acme")))

    async def opens() -> bool:
        return await site.status(new) == 200

    assert await site.until(opens) < 10
    cookie = await site.sign_in("customer-key")
    other = await site.sign_in("other-key-acme")
    assert await site.status(cookie, "/api/sandboxes") == 200
    await site.change(lambda file: file.with_changed("acme1", revoked=int(time.time())))
    await site.until_refused(CUSTOMER)
    assert await site.status(cookie, "/api/sandboxes") == 401
    assert await site.status(new) == 200
    assert await site.status(other, "/api/sandboxes") == 200


async def test_what_goes_on_by_a_key_that_is_revoked_ends(site: Site) -> None:
    async def follow(headers: dict[str, str]) -> None:
        async with site.client.stream("GET", "/api/chats/room/events", headers=headers, timeout=60) as stream:
            assert stream.status_code == 200
            begun.release()
            async for _ in stream.aiter_bytes():
                pass

    begun = asyncio.Semaphore(0)
    revoked, stays = asyncio.create_task(follow(CUSTOMER)), asyncio.create_task(follow(OPERATOR))
    async with asyncio.timeout(30):
        await begun.acquire()
        await begun.acquire()
        await site.change(lambda file: file.with_changed("acme1", revoked=int(time.time())))
        await asyncio.wait([revoked])
    assert not stays.done()
    stays.cancel()
    await asyncio.wait([stays])
    assert isinstance(revoked.exception(), httpx.RemoteProtocolError | None)


async def test_a_websocket_ends_with_the_key_the_link_and_the_time_that_let_it_in(site: Site) -> None:
    port = 8642
    up = f"(python3 -m http.server {port} -b 127.0.0.1 >/dev/null 2>&1 &) ; until : </dev/tcp/127.0.0.1/{port}; do sleep 0.1; done"
    called = await site.client.post(
        "/mcp", headers={**CUSTOMER, **MCP}, json=call("bash_tool", command=f"({up}) 2>/dev/null")
    )
    assert called.status_code == 200, called.text
    made = await site.client.post("/api/links/room?access=control", headers=CUSTOMER)
    key = made.json()["url"].partition("?key=")[2]
    address = f"{site.url.replace('http', 'ws')}/api/chats/room/ports/{port}/tcp"
    async with (
        asyncio.timeout(60),
        connect(f"{address}?key={key}", proxy=None) as by_link,
        connect(address, additional_headers=CUSTOMER, proxy=None) as by_key,
    ):
        assert (await site.client.delete(f"/api/links/room/{made.json()['id']}", headers=CUSTOMER)).status_code == 204
        with pytest.raises(ConnectionClosed) as closed:
            await by_link.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401
        await site.change(lambda file: file.with_changed("acme1", expires=int(time.time()) + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await by_key.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401


@pytest.mark.parametrize(
    "more",
    [{}, {"Idempotency-Key": "once"}, {"Mcp-Session-Id": "s1", "MCP-Protocol-Version": "2025-11-25"}],
    ids=["plain", "chosen identity", "resumable"],
)
async def test_a_tool_call_ends_with_its_key(site: Site, more: dict[str, str]) -> None:
    """One that can be resumed, too: nobody has a right to."""
    sent = call("bash_tool", command="echo up; sleep 50")
    calling = asyncio.create_task(site.client.post("/mcp", headers={**CUSTOMER, **MCP, **more}, json=sent, timeout=60))

    async def runs() -> bool:
        listed = await site.client.get("/api/sandboxes", headers=CUSTOMER)
        return any(row["connections"] for row in listed.json()["sandboxes"])

    await site.until(runs)
    await site.change(lambda file: file.with_changed("acme1", revoked=1))
    started = time.monotonic()
    await asyncio.wait([calling])
    assert time.monotonic() - started < 20
    calling.exception()

    async def idle() -> bool:
        listed = await site.client.get("/api/sandboxes?tenant=acme", headers=OPERATOR)
        return not any(row["connections"] for row in listed.json()["sandboxes"])

    await site.until(idle)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"version": 9}', '{"short": "a"}', '{"long-enough": "main"}', None]
)
async def test_a_file_that_cannot_be_used_changes_nothing(
    site: Site, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    good = site.keys.read_text()
    if content is None:
        site.keys.unlink()
    else:
        site.keys.write_text(content)

    async def said() -> bool:
        return any(record.levelname == "ERROR" and "API_KEYS_FILE" in record.message for record in caplog.records)

    await site.until(said)
    assert (await site.status(CUSTOMER), await site.status(OPERATOR)) == (200, 200)
    assert (await site.status({}), await site.status({"Authorization": "Bearer long-enough"})) == (401, 401)
    site.keys.write_text(good)
    await site.change(lambda file: file.with_changed("acme1", revoked=1))
    await site.until_refused(CUSTOMER)
    assert await site.status(OPERATOR) == 200


async def test_a_file_all_of_whose_keys_are_revoked_closes_the_service(site: Site) -> None:
    for id in ("oper1", "acme1", "acme2"):
        await site.change(lambda file, id=id: file.with_changed(id, revoked=1))  # type: ignore[misc]
    await site.until_refused(OPERATOR)
    assert (await site.status({}), await site.status(CUSTOMER)) == (401, 401)


async def test_an_operator_sees_all_tenants_and_a_user_only_its_own(site: Site) -> None:
    for chat, headers in (("of-acme", CUSTOMER), ("of-main", OPERATOR)):
        assert (await site.client.post(f"/api/chats/{chat}/start", headers=headers)).status_code == 200

    async def listed(headers: dict[str, str], query: str = "") -> set[tuple[str, str]]:
        rows = (await site.client.get(f"/api/sandboxes{query}", headers=headers)).json()["sandboxes"]
        return {(row["tenant"], row["chat"]) for row in rows}

    assert await listed(OPERATOR) == {("main", "of-main")}
    assert await listed(OPERATOR, "?tenant=*") == {("main", "of-main"), ("acme", "of-acme")}
    assert await listed(OPERATOR, "?tenant=acme") == await listed(CUSTOMER) == {("acme", "of-acme")}
    for query in ("?tenant=*", "?tenant=main"):
        assert await site.status(CUSTOMER, f"/api/sandboxes{query}") == 403
        assert (await site.client.post(f"/api/sandboxes/of-main/stop{query}", headers=CUSTOMER)).status_code == 403
    assert (await site.client.post("/api/sandboxes/of-acme/stop", headers=OPERATOR)).status_code == 404
    stopped = await site.client.post("/api/sandboxes/of-acme/stop?tenant=acme", headers=OPERATOR)
    assert stopped.status_code == 200
    assert (await site.client.delete("/api/sandboxes/of-acme?tenant=acme", headers=OPERATOR)).status_code == 204
    assert await listed(CUSTOMER) == set()


async def test_a_one_time_link_signs_in_once(site: Site) -> None:
    made = await site.client.post("/api/sign-in-links", headers=CUSTOMER)
    token = made.json()["url"].partition("?once=")[2]
    page = await site.client.get(f"/login?once={token}")
    assert page.status_code == 200
    assert "Set-Cookie" not in page.headers
    assert token in page.text
    first = await site.client.post("/login", data={"once": token, "next": "/admin"})
    assert (first.status_code, first.headers["location"]) == (303, "./admin")
    cookie = {"Cookie": f"cubicle-login={site.client.cookies['cubicle-login']}"}
    site.client.cookies.clear()
    assert await site.status(cookie, "/api/sandboxes") == 200
    assert await site.status(cookie, "/health/disk") == 401
    for again in (token, token + "x", token.replace("~", "."), "x" * 5000):
        assert (await site.client.post("/login", data={"once": again})).status_code == 401
    late = (await site.client.post("/api/sign-in-links", headers=CUSTOMER)).json()["url"].partition("?once=")[2]
    await site.change(lambda file: file.with_changed("acme1", revoked=1))
    await site.until_refused(CUSTOMER)
    assert (await site.client.post("/login", data={"once": late})).status_code == 401


async def test_a_link_makes_no_link(site: Site) -> None:
    url = (await site.client.post("/api/links/room?access=control", headers=CUSTOMER)).json()["url"]
    query = url.partition("?")[2]
    for method, path in (
        ("GET", "/api/links/room"),
        ("POST", "/api/links/room"),
        ("DELETE", "/api/links/room"),
        ("POST", "/api/sign-in-links"),
    ):
        assert (await site.client.request(method, f"{path}?{query}")).status_code == 401
    listed = (await site.client.get("/api/links/room", headers=CUSTOMER)).json()["links"]
    assert [(link["access"], "url" in link) for link in listed] == [("control", False)]
    assert (await site.client.get("/api/links/room", headers=OPERATOR)).json()["links"] == []
    for bad in ("access=root", "hours=0", "hours=x", "hours=9999"):
        assert (await site.client.post(f"/api/links/room?{bad}", headers=CUSTOMER)).status_code == 400
