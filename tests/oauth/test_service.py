"""The whole service with an issuer: metadata, challenges, access, CORS, and whose chat it is."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.settings import BadSettings, Settings, load
from tests.oauth.issuer_server import IssuerServer, issuer_server
from tests.support.emptying import empty
from tests.support.service import ACCEPT, MODERN, messages, modern_meta, serve

BASE = "https://box.example/tools"
KEY, CUSTOMER = "key-of-the-operator", "key-of-a-customer"


@dataclass
class Site:
    client: httpx.AsyncClient
    issuer: IssuerServer

    def bearer(self, token: str | None = None, **claims: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {token or self.token(**claims)}"}

    def token(self, **claims: Any) -> str:
        return self.issuer.token(**{"aud": f"{BASE}/mcp", "scope": "mcp", **claims})

    async def post(self, method: str, params: dict[str, Any], path: str = "/mcp", **headers: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        sent = {"Accept": ACCEPT, "Content-Type": "application/json", **headers}
        return await self.client.post(path, content=json.dumps(body), headers=sent)

    async def bash(self, command: str, headers: dict[str, str], meta: dict[str, Any] | None = None) -> str:
        params: dict[str, Any] = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        answer = await self.post("tools/call", params | ({"_meta": meta} if meta else {}), **headers)
        assert answer.status_code == 200, answer.text
        return str(messages(answer)[-1]["result"]["content"][0]["text"])


@asynccontextmanager
async def site_of(folder: Path, server: IssuerServer, **more: Any) -> AsyncIterator[Site]:
    (folder / "keys.json").write_text(json.dumps({CUSTOMER: "people"}))
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None, driver="memory", data_dir=folder / "data", pool_size=0, mcp_api_key=KEY,
        api_keys_file=folder / "keys.json", wrong_keys_per_minute=0, public_base_url=BASE, root_path="/tools",
        oauth_issuers=server.url, oauth_scopes="mcp", **more,
    )  # fmt: skip
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Site(client, server)
    await empty(make_driver(settings))


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with issuer_server() as server, site_of(tmp_path_factory.mktemp("site"), server) as site:
        yield site


WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (WELL_KNOWN, f"{BASE}/mcp"),
        (f"{WELL_KNOWN}/mcp", f"{BASE}/mcp"),
        (f"{WELL_KNOWN}/mcp/computer_use", f"{BASE}/mcp/computer_use"),
        (f"{WELL_KNOWN}/tools/mcp", f"{BASE}/mcp"),
        (f"{WELL_KNOWN}/tools/mcp/computer_use", f"{BASE}/mcp/computer_use"),
    ],
)
async def test_the_metadata_names_the_resource_as_people_write_it(site: Site, path: str, resource: str) -> None:
    answer = await site.client.get(path, headers={"Origin": "https://inspector.example"})
    assert answer.json() == {
        "resource": resource, "authorization_servers": [site.issuer.url], "bearer_methods_supported": ["header"],
        "resource_name": "Cubicle", "scopes_supported": ["mcp"],
    }  # fmt: skip
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("path", ["/other", "/", "/mcp/", "/tools", "/mcp%2f..%2fmcp", "/%2e%2e/mcp"])
async def test_no_metadata_for_what_is_no_mcp_path(site: Site, path: str) -> None:
    assert (await site.client.get(WELL_KNOWN + path)).status_code in (404, 307)


@pytest.mark.parametrize("path", ["/mcp", "/mcp/computer_use"])
async def test_whoever_shows_nothing_is_led_to_the_metadata(site: Site, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
        answer = await site.post("tools/list", {}, path, **headers)
        assert answer.status_code == 401
        expected = f'Bearer resource_metadata="{BASE}{WELL_KNOWN}{path}", scope="mcp"'
        assert answer.headers["www-authenticate"] == expected


async def test_a_token_opens_mcp_and_the_routes(site: Site) -> None:
    assert (await site.post("tools/list", {}, **site.bearer())).status_code == 200
    assert (await site.client.get("/api/sandboxes", headers=site.bearer())).status_code == 200
    assert (await site.client.get("/api/sandboxes", headers={"Authorization": f"Bearer {KEY}"})).status_code == 200


@pytest.mark.parametrize(
    ("claims", "status", "error"),
    [
        ({"iss": "https://evil.example"}, 401, "invalid_token"),
        ({"aud": "https://box.example/mcp"}, 401, "invalid_token"),
        ({"exp": 1000}, 401, "invalid_token"),
        ({"nbf": 9_999_999_999}, 401, "invalid_token"),
        ({"scope": "other"}, 403, "insufficient_scope"),
    ],
)
async def test_a_bad_token_is_told_so(site: Site, claims: dict[str, Any], status: int, error: str) -> None:
    for answer in (
        await site.post("tools/list", {}, **site.bearer(**claims)),
        await site.client.get("/api/sandboxes", headers=site.bearer(**claims)),
        await site.client.get("/files/x/uploads/", headers=site.bearer(**claims)),
    ):
        assert answer.status_code == status
        assert f'error="{error}"' in answer.headers["www-authenticate"]
        assert "resource_metadata=" in answer.headers["www-authenticate"]


async def test_a_person_is_an_operator_only_by_the_role_claim(tmp_path: Path) -> None:
    async with issuer_server() as server, site_of(tmp_path, server, oauth_role_claim="roles") as site:
        for claims, status in (
            ({}, 401),
            ({"roles": ["user"]}, 401),
            ({"roles": ["operator"]}, 200),
            ({"roles": "operator"}, 200),
        ):
            answer = await site.client.get("/health/disk", headers=site.bearer(**claims))
            assert answer.status_code == status, claims


async def test_an_issuer_that_is_down_is_503_and_keys_still_open(tmp_path: Path) -> None:
    async with issuer_server() as server:
        server.jwks = Response("down", 500)
        async with site_of(tmp_path, server) as site:
            answer = await site.post("tools/list", {}, **site.bearer())
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "cannot be checked" in answer.json()["error"]["message"]
            assert (await site.client.get("/api/sandboxes", headers=site.bearer())).status_code == 503
            answer = await site.post("tools/list", {}, Authorization=f"Bearer {KEY}")
            assert answer.status_code == 200


def test_an_issuer_without_a_key_would_be_an_open_door(tmp_path: Path) -> None:
    async def start() -> None:
        settings = Settings(_env_file=None, driver="memory", data_dir=tmp_path, oauth_issuers="https://id.example")  # type: ignore[call-arg]
        async with running(settings):
            pytest.fail("it started")

    import anyio

    with pytest.raises(BadSettings, match="MCP_API_KEY"):
        anyio.run(start)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("oauth_issuers", "http://id.example"),
        ("oauth_issuers", "id.example"),
        ("oauth_issuers", "https://id.example?x=1"),
        ("oauth_algorithms", "none"),
        ("oauth_algorithms", "RS256,HS256"),
        ("oauth_tenant", "main"),
        ("oauth_scopes", 'a"b'),
        ("cors_origins", "example.com"),
        ("cors_origins", "https://a.example/path"),
    ],
)
def test_settings_that_would_open_more_are_refused(name: str, value: str, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSettings, match=name.upper()):
        load(**{name: value})


class TestWhoseChat:
    """Without a chat id in the headers."""

    async def test_a_person_has_a_workspace(self, site: Site) -> None:
        await site.bash("echo of-alice > mine", site.bearer(sub="alice"))
        assert await site.bash("cat mine", site.bearer(sub="alice")) == "of-alice\n"
        assert "of-alice" not in await site.bash("cat mine 2>&1", site.bearer(sub="bob"))
        names = [box["chat"] for box in await listed(site, CUSTOMER)]
        assert {"user:alice", "user:bob"} <= set(names)
        assert "default" not in names

    async def test_nobody_else_of_the_tenant_enters_it(self, site: Site) -> None:
        await site.bash("echo secret > secret", site.bearer(sub="alice"))
        mallory = site.bearer(sub="mallory")
        answer = await site.post("tools/list", {}, **mallory, **{"X-Chat-Id": "user:alice"})
        assert answer.status_code == 403
        for method, path in (
            ("GET", "/files/user:alice/workspace/"), ("GET", "/files/user%3Aalice"), ("GET", "/preview/user:alice/"),
            ("POST", "/api/sandboxes/user:alice/stop"), ("DELETE", "/api/sandboxes/user:alice"),
            ("PUT", "/api/uploads/user:alice/x"), ("GET", "/system-prompt?chat_id=user:alice"),
            ("POST", "/terminal/user:alice/start-ttyd"), ("GET", "/api/chats/user:alice/events"),
            ("GET", "/files/user:alice:chatgpt-1"),
        ):  # fmt: skip
            assert (await site.client.request(method, path, headers=mallory)).status_code == 403, path
        assert "user:alice" not in (await site.client.get("/api/sandboxes", headers=mallory)).text
        assert (await site.client.get("/files/user:alice", headers=site.bearer(sub="alice"))).status_code == 200

    async def test_a_sign_in_link_opens_no_more_than_its_maker_may(self, site: Site) -> None:
        await site.bash("true", site.bearer(sub="alice"))
        made = await site.client.post("/api/sign-in-links", headers=site.bearer(sub="mallory"))
        once = made.json()["url"].partition("?once=")[2]
        await site.client.post("/login", data={"once": once})
        cookie = {"Cookie": f"cubicle-login={site.client.cookies['cubicle-login']}"}
        site.client.cookies.clear()
        assert (await site.client.get("/files/user:mallory", headers=cookie)).status_code == 200
        assert (await site.client.get("/files/user:alice", headers=cookie)).status_code == 401
        assert "user:alice" not in (await site.client.get("/api/sandboxes", headers=cookie)).text

    async def test_with_one_chat_for_all_people_still_have_one_each(self, tmp_path: Path) -> None:
        async with issuer_server() as server, site_of(tmp_path, server, single_user_mode="true") as site:
            alice, bob = site.bearer(sub="alice"), site.bearer(sub="bob")
            assert (await site.client.put("/api/uploads/any/mine.txt", content=b"a", headers=alice)).status_code == 201
            assert "mine.txt" in await site.bash("ls /mnt/user-data/uploads", alice)
            assert "mine.txt" in (await site.client.get("/api/uploads/user:alice", headers=alice)).text
            assert "mine.txt" not in (await site.client.get("/api/uploads/any", headers=bob)).text
            assert "mine.txt" not in await site.bash(
                "ls /mnt/user-data/uploads", {"Authorization": f"Bearer {CUSTOMER}"}
            )

    async def test_a_chat_named_by_a_conversation_is_resumed(self, site: Site) -> None:
        """Whoever comes back with GET sends no `_meta`."""
        session = {"Mcp-Session-Id": str(uuid.uuid4()), "MCP-Protocol-Version": "2025-11-25"}
        for who in (site.bearer(sub="alice"), {"Authorization": f"Bearer {CUSTOMER}"}):
            params = {"name": "bash_tool", "arguments": {"command": "echo resumed", "description": "test"}}
            params["_meta"] = {"openai/session": "v1/resumed"}
            answer = await site.post("tools/call", params, **session, **who)
            first = next(line[4:] for line in answer.text.splitlines() if line.startswith("id: "))
            asked = {"Accept": "text/event-stream", "Last-Event-ID": first, **session}
            again = await site.client.get("/mcp", headers={**asked, **who})
            assert again.status_code == 200, again.text
            assert messages(again)[-1]["result"]["content"][0]["text"] == "resumed\n"
            for other in (site.bearer(sub="mallory"), {"Authorization": f"Bearer {KEY}"}):
                assert (await site.client.get("/mcp", headers={**asked, **other})).status_code == 400
            elsewhere = {**asked, **who, "X-Chat-Id": "elsewhere"}
            assert (await site.client.get("/mcp", headers=elsewhere)).status_code == 400
            session["Mcp-Session-Id"] = str(uuid.uuid4())

    async def test_a_stream_that_listens_ends_with_its_token_and_a_call_does_not(self, site: Site) -> None:
        now = int(time.time())
        soon = site.bearer(sub="alice", exp=now - 50, nbf=now - 120, iat=now - 120)  # the skew is 60 s
        body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen"}
        asked = {"_meta": modern_meta(), "notifications": {"resourcesListChanged": True}}
        headers = {"Accept": ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
        calling = asyncio.ensure_future(site.bash("sleep 12; echo done", soon))
        async with asyncio.timeout(60):
            listened = await site.client.post("/mcp", json={**body, "params": asked}, headers={**headers, **soon})
        assert listened.status_code == 200
        assert messages(listened)[-1]["id"] == 1
        assert time.time() >= now + 9
        assert await calling == "done\n"
        assert (await site.post("tools/list", {}, **soon)).status_code == 401

    async def test_a_conversation_of_a_client_is_a_chat_of_its_own(self, site: Site) -> None:
        alice, key = site.bearer(sub="alice"), {"Authorization": f"Bearer {CUSTOMER}"}
        for who in (alice, key):
            await site.bash("echo one > here", who, {"openai/session": "v1/one"})
            assert await site.bash("cat here", who, {"openai/session": "v1/one"}) == "one\n"
            for meta in ({"openai/session": "v1/two"}, {"vscode.conversationId": "v1/one"}):
                assert await site.bash("cat here 2>&1", who, meta) != "one\n"
        assert await site.bash("cat here 2>&1", site.bearer(sub="bob"), {"openai/session": "v1/one"}) != "one\n"

    async def test_a_header_goes_before_what_the_client_says(self, site: Site) -> None:
        headers = {**site.bearer(sub="alice"), "X-Chat-Id": "named"}
        await site.bash("echo named > named", headers, {"openai/session": "s"})
        assert await site.bash("cat named", headers, {"openai/session": "t"}) == "named\n"

    @pytest.mark.parametrize("value", ["", 7, None, ["a"], {"a": 1}, "x" * 5000])
    async def test_a_conversation_that_is_no_text_is_none(self, site: Site, value: Any) -> None:
        answer = await site.post("tools/list", {"_meta": {"openai/session": value}}, **site.bearer(sub="alice"))
        assert answer.status_code == 200

    async def test_the_mail_header_names_nobody_else(self, site: Site) -> None:
        headers = {**site.bearer(sub="carol", email="carol@example.com"), "X-User-Email": "boss@example.com"}
        answer = await site.client.get("/system-prompt", headers=headers)
        assert "boss@example.com" not in answer.text
        assert "user:carol" in answer.text

    async def test_strict_mode_takes_a_conversation_for_a_chat_id(self, tmp_path: Path) -> None:
        async with issuer_server() as server, site_of(tmp_path, server, single_user_mode="false") as site:
            key = {"Authorization": f"Bearer {KEY}"}
            assert (await site.post("tools/list", {}, **key)).status_code == 400
            assert (await site.post("tools/list", {"_meta": {"openai/session": "a"}}, **key)).status_code == 200
            assert (await site.post("tools/list", {}, **site.bearer())).status_code == 200


async def listed(site: Site, key: str) -> list[dict[str, Any]]:
    answer = await site.client.get("/api/sandboxes", headers={"Authorization": f"Bearer {key}"})
    found: list[dict[str, Any]] = answer.json()["sandboxes"]
    return found


async def test_links_of_a_person_open_the_workspace(site: Site) -> None:
    prompt = (await site.client.get("/system-prompt", headers=site.bearer(sub="dora"))).text
    await site.bash("echo hello > /mnt/user-data/outputs/a.txt || echo hello > a.txt", site.bearer(sub="dora"))
    key = prompt.split("?key=", 1)[1].split()[0].strip("`)")
    assert (await site.client.get(f"/files/user:dora?key={key}")).status_code == 200
    assert (await site.client.get(f"/files/user:alice?key={key}")).status_code == 401


PAGE = "https://app.example"


async def preflight(client: httpx.AsyncClient, path: str = "/mcp", **headers: str) -> httpx.Response:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-chat-id"}
    return await client.options(path, headers={"Origin": PAGE, **asked, **headers})


class TestCors:
    """Pages of other origins on the MCP paths, and nowhere else."""

    async def test_a_page_with_a_key_may_call(self, site: Site) -> None:
        answer = await preflight(site.client)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "x-chat-id" in answer.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        for status, headers in ((200, site.bearer()), (401, {})):
            said = await site.post("tools/list", {}, Origin=PAGE, **headers)
            assert (said.status_code, said.headers["access-control-allow-origin"]) == (status, PAGE)
            exposed = said.headers["access-control-expose-headers"].lower()
            assert {"mcp-session-id", "www-authenticate"} <= {name.strip() for name in exposed.split(",")}

    @pytest.mark.parametrize("path", ["/api/sandboxes", "/files/x", "/login", "/health", "/mcpx", "/mcp/x"])
    async def test_nothing_else_is_open_to_pages(self, site: Site, path: str) -> None:
        for answer in (await preflight(site.client, path), await site.client.get(path, headers={"Origin": PAGE})):
            assert "access-control-allow-origin" not in answer.headers

    async def test_configured_origins_are_the_only_ones(self, tmp_path: Path) -> None:
        async with (
            issuer_server() as server,
            site_of(tmp_path, server, cors_origins=PAGE, allowed_hosts="127.0.0.1") as site,
        ):
            assert (await preflight(site.client)).headers["access-control-allow-origin"] == PAGE
            assert (await site.post("tools/list", {}, Origin=PAGE, **site.bearer())).status_code == 200
            for origin in ("https://evil.example", "https://app.example.evil.example", "http://app.example", "null"):
                refused = await preflight(site.client, Origin=origin)
                assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (400, False)
            assert (
                await site.post("tools/list", {}, Origin="https://evil.example", **site.bearer())
            ).status_code == 403
            assert (await preflight(site.client, Host="evil.example")).status_code == 403
            assert (
                await site.post("tools/list", {}, Host="evil.example", Origin=PAGE, **site.bearer())
            ).status_code == 403


async def test_a_service_without_a_key_opens_to_no_page(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, driver="memory", data_dir=tmp_path, pool_size=0)  # type: ignore[call-arg]
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        answer = await preflight(client)
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (400, False)
        assert (await client.get(WELL_KNOWN)).status_code == 404
    await empty(make_driver(settings))
