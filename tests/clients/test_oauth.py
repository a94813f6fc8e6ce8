"""The OAuth flows of MCP clients, whole: the service, a certified provider, and a person who signs in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.settings import Settings
from tests.clients.conftest import HERE
from tests.clients.openid import provider, sign_in
from tests.support.emptying import empty
from tests.support.service import serve

CALLBACK = "http://127.0.0.1:1/callback"
pytestmark = pytest.mark.real


@dataclass
class Site:
    url: str
    issuer: str


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, node_program: str) -> AsyncIterator[Site]:
    listening = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with provider(node_program, f"{base}/login/callback") as issuer:
        settings = Settings(  # type: ignore[call-arg]
            _env_file=None, driver="memory", data_dir=tmp_path_factory.mktemp("data"), pool_size=0,
            mcp_api_key="key-of-the-operator", public_base_url=base, oauth_issuers=issuer, oauth_scopes="mcp",
            oauth_client_id="cubicle-pages",
        )  # fmt: skip
        async with running(settings) as app, serve(app, listening) as url:
            yield Site(url, issuer)
        await empty(make_driver(settings))


@dataclass
class Storage:
    """Where the Python SDK keeps what it got."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    went_to: list[str] = field(default_factory=list)

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def flow(site: Site, storage: Storage, name: str, path: str) -> OAuthClientProvider:
    async def go(url: str) -> None:
        storage.went_to.append(url)

    async def come_back() -> AuthorizationCodeResult:
        answer = parse_qs(urlsplit(await sign_in(storage.went_to[-1], CALLBACK, name)).query)
        return AuthorizationCodeResult(code=answer["code"][0], state=answer["state"][0], iss=answer["iss"][0])

    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "cubicle-test",
            "redirect_uris": [CALLBACK],
            "grant_types": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_method": "none",
            "application_type": "native",
        }
    )
    return OAuthClientProvider(f"{site.url}{path}", metadata, storage, go, come_back)


@pytest.mark.parametrize("path", ["/mcp", "/mcp/computer_use"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_python_sdk_signs_in(site: Site, mode: Any, path: str) -> None:
    storage = Storage()
    auth = flow(site, storage, "alice", path)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(f"{site.url}{path}", http_client=http), mode=mode) as client,
    ):
        result = await client.call_tool("bash_tool", {"command": "echo by python", "description": "test"})
        assert result.content[0].text == "by python\n"  # type: ignore[union-attr]
    asked = parse_qs(urlsplit(storage.went_to[0]).query)
    assert (asked["resource"], asked["code_challenge_method"]) == ([f"{site.url}{path}"], ["S256"])
    assert "mcp" in asked["scope"][0].split()
    assert len(storage.went_to) == 1


async def test_each_person_gets_a_workspace(site: Site) -> None:
    seen = []
    for name in ("alice", "bob", "alice"):
        async with (
            httpx2.AsyncClient(auth=flow(site, Storage(), name, "/mcp"), timeout=60, trust_env=False) as http,
            Client(streamable_http_client(f"{site.url}/mcp", http_client=http)) as client,
        ):
            arguments = {"command": f"cat who 2>/dev/null; echo {name} >> who", "description": "test"}
            result = await client.call_tool("bash_tool", arguments)
            seen.append(result.content[0].text)  # type: ignore[union-attr]
    assert ["alice" in text for text in seen] == [False, False, True]
    assert not any("bob" in text for text in seen)


async def test_the_typescript_sdk_signs_in(site: Site, node_program: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(node_program, "oauth.mjs"),
        cwd=HERE,
        env={**os.environ, "NO_PROXY": "*", "URL": f"{site.url}/mcp", "CALLBACK": CALLBACK},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            line = (await process.stdout.readline()).decode()
            assert line.startswith("GO "), line + (await process.stdout.read()).decode()
            code = parse_qs(urlsplit(await sign_in(line[3:].strip(), CALLBACK, "tess")).query)["code"][0]
            output, _ = await process.communicate(f"{code}\n".encode())
        assert process.returncode == 0, output.decode()
        assert json.loads(output.decode().strip().splitlines()[-1]) == {"answer": "by typescript\n", "scope": "mcp"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_the_inspector_takes_the_token(site: Site, node_program: str, tmp_path: Path) -> None:
    """Its command line has no flow of its own: it is given the token that another client got."""
    storage = Storage()
    async with (
        httpx2.AsyncClient(auth=flow(site, storage, "ines", "/mcp"), timeout=60, trust_env=False) as http,
        Client(streamable_http_client(f"{site.url}/mcp", http_client=http)),
    ):
        pass
    assert storage.tokens is not None
    header = f"Authorization: Bearer {storage.tokens.access_token}"
    arguments = [
        "node_modules/.bin/mcp-inspector",
        "--cli",
        f"{site.url}/mcp",
        "--transport",
        "http",
        "--header",
        header,
    ]
    process = await asyncio.create_subprocess_exec(
        *(node_program, *arguments, "--method", "tools/list"),
        cwd=HERE,
        env={**os.environ, "NO_PROXY": "*", "NO_COLOR": "1", "HOME": str(tmp_path)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(150):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert "bash_tool" in [tool["name"] for tool in json.loads(output)["tools"]]


@pytest.mark.parametrize("client", ["cubicle-pages", "with-secret"])
async def test_a_person_signs_in_to_the_pages(tmp_path: Path, node_program: str, client: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with provider(node_program, f"{base}/login/callback") as issuer:
        settings = Settings(  # type: ignore[call-arg]
            _env_file=None, driver="memory", data_dir=tmp_path, pool_size=0, mcp_api_key="key-of-the-operator",
            public_base_url=base, oauth_issuers=issuer, oauth_client_id=client,
            oauth_client_secret="a-secret-of-the-client" if client == "with-secret" else "",
        )  # fmt: skip
        async with (
            running(settings) as app,
            serve(app, listening) as url,
            httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as browser,
        ):
            begun = await browser.get("/login/oauth", params={"next": "/api/sandboxes"})
            back = await sign_in(begun.headers["location"], f"{base}/login/callback", "paula")
            answer = await browser.get(back, follow_redirects=True)
            assert answer.status_code == 200, answer.text
            assert str(answer.url) == f"{base}/api/sandboxes"
            assert "user:paula" in (await browser.get("/system-prompt")).text
            out = await browser.post("/logout")
            assert f'href="{issuer}/session/end?client_id={client}&amp;post_logout_redirect_uri=' in out.text
            assert (await browser.get("/api/sandboxes")).status_code == 401
        await empty(make_driver(settings))
