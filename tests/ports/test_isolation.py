"""Who is refused: every name with every wrong credential, tricks with the Host, smuggled requests, foreign pages."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import quote

import httpx
import pytest

from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.core.signing import PortGrant, PortRole
from cubicle.ports.links import PortLinks
from tests.ports.conftest import CHAT, KEYS, Ground, ground_on

ground = ground_on("memory", "docker-runc")

SAME_ID = Chat(CHAT.id, "rival")
"""Another tenant's chat of the same id."""
NEIGHBOUR = Chat("other-room", CHAT.tenant)


async def raw(ground: Ground, text: bytes) -> bytes:
    """What comes back for these bytes, until the service ends the connection or a second passes in silence."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ground.port)
    writer.write(text)
    seen = b""
    try:
        async with asyncio.timeout(20):
            while chunk := await reader.read(65536):
                seen += chunk
                if b"Connection: close" not in text and b"\r\n\r\n" in seen:
                    break
    finally:
        writer.close()
    return seen


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def wrong_tokens(ground: Ground, port: int) -> dict[str, str]:
    """Cookies that open something else, or nothing."""
    links, past = ground.links, int(time.time()) - 1
    foreign = PortLinks(b"f" * 32, Links(b"f" * 32, "http://127.0.0.1", KeyRing({"x" * 8: "acme"})), port=1)
    good = ground.cookie(CHAT, port)
    return {
        "none": "",
        "garbage": "1.2.3.4.5",
        "wrong chat": ground.cookie(NEIGHBOUR, port),
        "wrong tenant": ground.cookie(SAME_ID, port),
        "another port": ground.cookie(CHAT, port + 1),
        "every port": ground.cookie(CHAT, 0),
        "expired": ground.cookie(CHAT, port, expires=past),
        "a link's token": ground.token(CHAT, port),
        "the guest of no share": links.token(PortGrant(CHAT, port, PortRole.GUEST, "0" * 16)),
        "another service's": foreign.token(PortGrant(CHAT, port, PortRole.VISIT)),
        "longer than it was": good.replace(good[:10], str(int(good[:10]) + 1), 1),
        "another chat written in": ".".join([*good.split(".")[:2], "b3RoZXI", *good.split(".")[3:]]),
    }


async def test_fifty_names_are_closed_to_every_wrong_credential(ground: Ground, program: int) -> None:
    """Who is refused does not get as far as the driver: over those that take longer, five names have to do."""
    count = 50 if ground.driver == "memory" else 5
    ports = [program, *range(20_001, 20_000 + count)]
    refused = 0
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{ground.port}", timeout=60, trust_env=False, verify=False
    ) as client:
        for port in ports:
            host = {"Host": ground.host(CHAT, port)}
            for what, token in wrong_tokens(ground, port).items():
                for cookie in ("cubicle-port", "__Host-cubicle-port-frame"):
                    answer = await client.get("/", headers=host | {"Cookie": f"{cookie}={token}"})
                    assert answer.status_code == 401, (port, what)
                    assert answer.headers["X-Cubicle-Port"] == "refused"
                    refused += 1
            for what in ("expired", "wrong chat", "wrong tenant", "garbage", "the guest of no share"):
                token = wrong_tokens(ground, port)[what]
                assert (await client.get(f"/?cubicle-key={token}", headers=host)).status_code == 401
                assert (await client.get("/", headers=host | {"X-Cubicle-Key": token})).status_code == 401
                refused += 2
            rival = host | {"Authorization": f"Bearer {KEYS['rival']}"}
            assert (await client.get("/", headers=rival)).status_code == 404
            refused += 1
    assert refused == count * (2 * 12 + 2 * 5 + 1)


async def test_a_cookie_is_no_link_and_a_link_no_cookie(ground: Ground, program: int) -> None:
    async with ground.client(CHAT, program, by="nothing") as client:
        assert (await client.get(f"/?cubicle-key={ground.cookie(CHAT, program)}")).status_code == 401
        assert (await client.get("/", headers={"X-Cubicle-Key": ground.cookie(CHAT, program)})).status_code == 401


def tricks(ground: Ground, port: int) -> dict[str, list[str]]:
    """Host lines that are not plainly this port's name, though somebody could take them for it."""
    host, name = ground.host(CHAT, port), ground.host(CHAT, port).partition(":")[0]
    label = name.partition(".")[0]
    return {
        "a dot at the end": [f"{name}."],
        "a dot and a port": [f"{name}.:{ground.port}"],
        "two hosts": [host, host],
        "two hosts, one ours": [host, f"127.0.0.1:{ground.port}"],
        "two hosts, ours first": [f"127.0.0.1:{ground.port}", host],
        "two in one line": [f"{host}, 127.0.0.1"],
        "two in one line, ours first": [f"127.0.0.1, {host}"],
        "another script": [f"{label}.locаlhost"],
        "a wide dot": [f"{label}\uff0elocalhost"],
        "punycode": [f"xn--{label}.localhost"],
        "a name above": [f"x.{name}"],
        "user and name": [f"a@{host}"],
        "percent": [f"{label}%2elocalhost"],
        "no port behind the colon": [f"{name}:"],
        "zeros before the port": [f"0{name}"],
        "no such port": [f"99999-{label.partition('-')[2]}.localhost"],
        "an unknown name beneath": ["api.localhost"],
    }


@pytest.mark.parametrize("path", ["/", "/health", "/api/sandboxes", "/mcp", "/admin", "/static/viewer"])
async def test_no_trick_with_the_host_reaches_the_program_or_the_service(
    ground: Ground, program: int, path: str
) -> None:
    cookie = f"Cookie: cubicle-port={ground.cookie(CHAT, program)}"
    key = f"Authorization: Bearer {KEYS['main']}"
    for what, hosts in tricks(ground, program).items():
        lines = [f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts), cookie, key, "Connection: close", "", ""]
        answer = await raw(ground, "\r\n".join(lines).encode())
        assert status(answer) in (400, 404), (what, answer[:200])
        assert b"x-cubicle-port: refused" in answer.lower() or b"no valid HTTP" in answer or status(answer) == 400, what


async def test_a_target_that_names_another_host_is_refused(ground: Ground, program: int) -> None:
    host, own = ground.host(CHAT, program), f"127.0.0.1:{ground.port}"
    cookie = f"Cookie: cubicle-port={ground.cookie(CHAT, program)}"
    for target, named in (
        (f"http://{own}/health", host),
        (f"http://{host}/", own),
        (f"http://{ground.host(NEIGHBOUR, program)}/", host),
        (f"http://{ground.host(CHAT, program + 1)}/", host),
        ("*", host),
    ):
        text = f"GET {target} HTTP/1.1\r\nHost: {named}\r\n{cookie}\r\nConnection: close\r\n\r\n"
        assert status(await raw(ground, text.encode())) == 400, target
    same = f"GET http://{host}/same HTTP/1.1\r\nHost: {host}\r\n{cookie}\r\nConnection: close\r\n\r\n"
    assert b'"target": "/same"' in await raw(ground, same.encode())


async def test_letter_case_and_port_change_nothing(ground: Ground, program: int) -> None:
    name = ground.host(CHAT, program).partition(":")[0]
    for host in (name.upper(), name, f"{name}:80", f"{name.title()}:{ground.port}"):
        async with ground.client(CHAT, program) as client:
            assert (await client.get("/", headers={"Host": host})).json()["target"] == "/"
            assert (await client.get("/", headers={"Host": host, "Cookie": ""})).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/mcp", "/api/sandboxes", "/login", "/admin", "/static/x", "/files/a/b"])
async def test_a_port_s_name_never_serves_the_service(ground: Ground, program: int, path: str) -> None:
    async with ground.client(CHAT, program) as client:
        assert (await client.get(path)).json()["target"] == path
    async with ground.client(CHAT, program, by="nothing") as client:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            assert (await client.request(method, path)).status_code == 401


async def test_the_service_s_names_never_serve_a_port(ground: Ground, program: int) -> None:
    token = ground.token(CHAT, program)
    headers = {"Cookie": f"cubicle-port={ground.cookie(CHAT, program)}", "X-Cubicle-Key": token}
    headers |= {"X-Forwarded-Host": ground.host(CHAT, program), "Forwarded": f"host={ground.host(CHAT, program)}"}
    for host in (f"127.0.0.1:{ground.port}", "localhost", "[::1]", "tools.example.org", ""):
        answer = await ground.service.client.get(f"/?cubicle-key={token}", headers=headers | {"Host": host})
        assert "x-cubicle-port" not in answer.headers
        assert answer.status_code == 401
        assert (await ground.service.client.get("/health", headers=headers | {"Host": host})).json() == {
            "status": "healthy"
        }


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 0\r\nContent-Length: 35\r\n",
        b"Content-Length: 0, 35\r\n",
        b"Content-Length: +0\r\n",
        b"Content-Length: 0x0\r\n",
        b"Content-Length: 35\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 35\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: identity, chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b" Transfer-Encoding: chunked\r\n",
        b"X: y\nTransfer-Encoding: chunked\r\n",
        b"X: y\rTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        b"Connection: content-length\r\nContent-Length: 35\r\n",
        b"Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 35\r\n",
        b"Expect: 100-continue\r\nContent-Length: 35\r\n",
    ],
)
async def test_no_request_is_smuggled_to_the_program(ground: Ground, program: int, head: bytes) -> None:
    """Whatever a body's length is, the program sees one request, or none; what follows is a visitor without a cookie."""
    host, cookie = ground.host(CHAT, program), ground.cookie(CHAT, program)
    lines = f"POST /first HTTP/1.1\r\nHost: {host}\r\nCookie: cubicle-port={cookie}\r\n".encode()
    answer = await raw(ground, lines + head + b"Connection: close\r\n\r\n" + SMUGGLED)
    assert answer.count(b'"target": "/first"') <= 1
    assert b'"target": "/smuggled"' not in answer
    seen = await asyncio.gather(*(_target(ground, program, f"/clean-{number}") for number in range(5)))
    assert seen == [f"/clean-{number}" for number in range(5)]


async def _target(ground: Ground, program: int, path: str) -> str:
    async with ground.client(CHAT, program) as client:
        return str((await client.get(path)).json()["target"])


async def test_a_program_cannot_answer_the_next_visitor(ground: Ground, program: int) -> None:
    """Two answers to one request: the second is thrown away with the connection."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    for _ in range(3):
        async with ground.client(CHAT, program) as client:
            assert (await client.get(f"/raw?hex={(answer + evil).hex()}")).text == "ok"
        assert await _target(ground, program, "/clean") == "/clean"


@pytest.mark.parametrize(
    "to",
    [
        "https://tools.example.org/api/sandboxes",
        "HTTPS://TOOLS.EXAMPLE.ORG./x",
        "//tools.example.org/",
        "/\\tools.example.org/",
        "https:\\\\tools.example.org",
        "https:/tools.example.org/",
        "https:tools.example.org",
        "ht\ttps://tools.example.org/",
        "https://user:pass@tools.example.org:8443/",
        "///tools.example.org/",
        "https://tools%2Eexample%2eorg/",
        "https://%74ools.example.org/",
        "https://to\u00adols.example.org/",
        "https://tools%E3%80%82example.org/",
        "//a%40b@tools%2Eexample.org/",
    ],
)
async def test_a_redirect_to_the_service_is_refused(own_name: Ground, to: str) -> None:
    port = await _started(own_name)
    async with own_name.client(CHAT, port) as client:
        answer = await client.get(f"/status?code=302&to={quote(to)}")
    assert answer.status_code == 502
    assert "Location" not in answer.headers


_programs: dict[int, int] = {}


async def _started(ground: Ground) -> int:
    if ground.port not in _programs:
        _programs[ground.port] = await ground.start(CHAT)
    return _programs[ground.port]


@pytest.mark.parametrize("number", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "localhost", "0.0.0.0"])
async def test_a_redirect_to_this_machine_stays_in_the_chat(ground: Ground, program: int, number: str) -> None:
    async with ground.client(CHAT, program) as client:
        answer = await client.get(f"/status?code=302&to={quote(f'http://{number}:{ground.port}/admin')}")
    assert answer.headers["Location"] == f"http://{ground.host(CHAT, ground.port)}/admin"


FOREIGN = ["null", "https://evil.example", "http://localhost", "http://127.0.0.1"]


async def test_pages_of_others_cannot_use_a_visitors_cookie(ground: Ground, program: int) -> None:
    neighbour = f"http://{ground.host(NEIGHBOUR, program)}"
    async with ground.client(CHAT, program) as client:
        for origin in (*FOREIGN, neighbour):
            for site in ("same-site", "cross-site"):
                fetched = {"Origin": origin, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}
                for method in ("GET", "POST"):
                    assert (await client.request(method, "/", headers=fetched)).status_code == 403
                posted = {"Origin": origin, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
                assert (await client.post("/", headers=posted)).status_code == 403
            assert (await client.post("/", headers={"Origin": origin})).status_code == 403
            handshake = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
            handshake |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": origin}
            assert (await client.get("/", headers=handshake)).status_code == 403
        sibling = {"Origin": f"http://{ground.host(CHAT, program + 1)}", "Sec-Fetch-Site": "same-site"}
        assert (await client.post("/", headers=sibling)).status_code == 200
        led = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await client.get("/", headers=led)).status_code == 200


async def test_wrong_keys_at_a_port_count_as_everywhere(ground: Ground, program: int) -> None:
    async with ground.client(CHAT, program, by="nothing") as client:
        client.headers["X-Forwarded-For"] = "203.0.113.9"
        statuses = set()
        for number in range(40):
            answer = await client.get("/", headers={"Authorization": f"Bearer guess-{number:04}"})
            statuses.add(answer.status_code)
        assert statuses == {401, 429}
        own = {"Cookie": f"cubicle-port={ground.cookie(CHAT, program)}", "Authorization": "Bearer of-the-program"}
        assert (await client.get("/", headers=own)).status_code == 200


async def test_a_removed_chat_s_names_are_nobody_s(ground: Ground) -> None:
    chat = Chat("gone", "acme")
    port = await ground.start(chat)
    assert await _seen(ground, chat, port) == 200
    assert (
        await ground.service.client.delete(f"/api/sandboxes/{chat.id}", headers=ground.key(chat))
    ).status_code == 204
    assert await _seen(ground, chat, port) == 404
    assert await _seen(ground, chat, port, by="key") == 404
    assert await _seen(ground, chat, port, by="nothing") == 401


async def _seen(ground: Ground, chat: Chat, port: int, by: str = "cookie") -> int:
    async with ground.client(chat, port, by=by) as client:
        return (await client.get("/")).status_code
