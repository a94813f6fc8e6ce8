"""The ports of sandboxes behind the real nginx and the real Caddy, with TLS, a wildcard name and a path prefix, by the configuration that deploy/ has."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import connect

from cubicle.core.chat import Chat
from tests.ports.conftest import KEYS, Ground, ground_of
from tests.support.process import free_port
from tests.support.reverse_proxies import PROXIES, options, reverse_proxy, trusting

CHAT = Chat("proxied", "acme")
PAGE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Accept": "text/html"}


class Front:
    """The proxy, and a client that reaches every name through it."""

    def __init__(self, ground: Ground, port: int, trusted: ssl.SSLContext) -> None:
        self.ground = ground
        self.port = port
        self.trusted = trusted

    async def ask(self, name: str, target: str, method: str = "GET", **headers: str) -> httpx.Response:
        sent = {"Host": f"{name}:{self.port}"} | {key.replace("_", "-"): value for key, value in headers.items()}
        async with httpx.AsyncClient(verify=self.trusted, timeout=60, trust_env=False) as client:
            url = f"https://127.0.0.1:{self.port}{target}"
            return await client.request(method, url, headers=sent, extensions={"sni_hostname": name})


@pytest.fixture(scope="module", params=PROXIES)
async def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    trusted = await asyncio.to_thread(trusting, folder)
    async with (
        ground_of(tmp_path_factory.mktemp("behind"), "memory", **options(port)) as ground,
        reverse_proxy(request.param, folder, port, ground.port),
    ):
        yield Front(ground, port, trusted)


@pytest.fixture(scope="module")
async def program(front: Front) -> int:
    return await front.ground.start(CHAT)


def name_of(front: Front, port: int) -> str:
    return f"{port}-{front.ground.links.id(CHAT)}.preview.example.net"


async def test_a_link_of_the_service_opens_the_port(front: Front, program: int) -> None:
    listed = await front.ask(
        "tools.example.org", f"/cubicle/api/chats/{CHAT.id}/ports", Authorization=f"Bearer {KEYS['acme']}"
    )
    (row,) = [row for row in listed.json()["ports"] if row["port"] == program]
    name = name_of(front, program)
    assert row["url"] == f"https://{name}:{front.port}/"
    answer = await front.ask(name, row["link"].removeprefix(row["url"].rstrip("/")), **PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (303, row["url"])
    cookie = answer.headers["Set-Cookie"]
    assert re.fullmatch(r"__Host-cubicle-port=[\w.-]+; Max-Age=\d+; Path=/; HttpOnly; SameSite=Lax; Secure", cookie)
    seen = (await front.ask(name, "/cubicle/x?y", Cookie=cookie.partition(";")[0])).json()
    assert seen["target"] == "/cubicle/x?y"
    headers = {key.lower(): value for key, value in seen["headers"]}
    assert headers["x-forwarded-proto"] == "https"
    assert headers["x-forwarded-host"] == f"{name}:{front.port}"
    assert headers["host"] == f"localhost:{program}"
    assert "cookie" not in headers


async def test_names_are_kept_apart(front: Front, program: int) -> None:
    name = name_of(front, program)
    key = f"Bearer {KEYS['main']}"
    assert (await front.ask(name, "/")).status_code == 401
    assert (await front.ask(name, "/cubicle/health")).status_code == 401
    assert (await front.ask("api.preview.example.net", "/cubicle/api/sandboxes", Authorization=key)).status_code == 404
    assert (await front.ask("tools.example.org", "/cubicle/health")).json() == {"status": "healthy"}


async def test_events_uploads_and_sockets_pass_as_they_come(front: Front, program: int) -> None:
    name, ground = name_of(front, program), front.ground
    cookie = f"__Host-cubicle-port={ground.cookie(CHAT, program)}"
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port, ssl=front.trusted, server_hostname=name)
    head = f"GET /events?n=3&every=1 HTTP/1.1\r\nHost: {name}:{front.port}\r\nCookie: {cookie}\r\n\r\n"
    writer.write(head.encode())
    line = await reader.readuntil(b"data: 0")
    assert b"200 OK" in line
    sent = float((await reader.readline()).split()[0])
    assert time.time() - sent < 0.9
    writer.close()
    upload = await front.ask(name, "/count", "POST", Cookie=cookie, Content_Length="0")
    assert upload.json() == {"size": 0}
    sockets = await ground.start_sockets(CHAT)
    other = name_of(front, sockets)
    async with connect(
        f"wss://{other}:{front.port}/",
        host="127.0.0.1",
        port=front.port,
        ssl=front.trusted,
        additional_headers={"Cookie": f"__Host-cubicle-port={ground.cookie(CHAT, sockets)}"},
        origin=f"https://{other}:{front.port}",  # type: ignore[arg-type]
        proxy=None,
    ) as client:
        await client.send("through all of it")
        assert await client.recv() == "through all of it"


async def test_the_prompt_has_the_public_address(front: Front) -> None:
    prompt = await front.ask(
        "tools.example.org", f"/cubicle/system-prompt?chat_id={CHAT.id}", Authorization=f"Bearer {KEYS['acme']}"
    )
    assert f"https://PORT-{front.ground.links.id(CHAT)}.preview.example.net:{front.port}/?cubicle-key=" in prompt.text


async def test_on_tls_only_cookies_count_that_no_other_name_can_set(front: Front, program: int) -> None:
    name, value = name_of(front, program), front.ground.cookie(CHAT, program)
    assert (await front.ask(name, "/", Cookie=f"__Host-cubicle-port={value}")).status_code == 200
    assert (await front.ask(name, "/", Cookie=f"cubicle-port={value}")).status_code == 401
    async with httpx.AsyncClient(verify=front.trusted, timeout=60, trust_env=False) as client:
        answer = await client.post(
            f"https://127.0.0.1:{front.port}/cubicle/login",
            data={"key": KEYS["acme"]},
            headers={"Host": f"tools.example.org:{front.port}"},
            extensions={"sni_hostname": "tools.example.org"},
        )
    pair, _, attributes = answer.headers["Set-Cookie"].partition("; ")
    login, _, token = pair.partition("=")
    assert login.startswith("__Host-cubicle-login-")
    assert "Path=/;" in attributes
    for cookie, status in ((f"{login}={token}", 200), (f"cubicle-login={token}", 401)):
        asked = await front.ask("tools.example.org", "/cubicle/api/sandboxes", Cookie=cookie)
        assert asked.status_code == status
