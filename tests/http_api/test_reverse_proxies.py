"""The service behind the real nginx and the real Caddy: path prefix, TLS, events, WebSockets, uploads, addresses."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from cubicle.core.chat import Chat
from tests.ports.conftest import KEYS, Ground, ground_of
from tests.support.process import ACCEPT, free_port
from tests.support.reverse_proxies import NAME, PROXIES, options, reverse_proxy, trusting

CHAT = Chat("proxied", "acme")
KEY = {"Authorization": f"Bearer {KEYS['acme']}"}
MAX_UPLOAD_MB = 96
WRONG_KEYS = 5


@dataclass
class Front:
    """A proxy, and a client that reaches the service through it."""

    kind: str
    ground: Ground
    port: int
    trusted: ssl.SSLContext
    folder: Path

    def client(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{self.port}/cubicle",
            headers={"Host": f"{NAME}:{self.port}", **headers},
            verify=self.trusted,
            timeout=60,
            trust_env=False,
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trusted, server_hostname=NAME)


SNI = {"sni_hostname": NAME}


@pytest.fixture(scope="module", params=PROXIES)
async def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    trusted = await asyncio.to_thread(trusting, folder)
    more = {"MAX_UPLOAD_MB": str(MAX_UPLOAD_MB), "WRONG_KEYS_PER_MINUTE": str(WRONG_KEYS)}
    async with (
        ground_of(tmp_path_factory.mktemp("behind"), "memory", **options(port), **more) as ground,
        reverse_proxy(request.param, folder, port, ground.port),
    ):
        yield Front(request.param, ground, port, trusted, folder)


async def test_pages_and_redirects_stay_under_the_prefix(front: Front) -> None:
    async with front.client(**KEY) as client:
        assert (await client.get("/health", extensions=SNI)).json() == {"status": "healthy"}
        assert (await client.get("/openapi.json", extensions=SNI)).json()["openapi"]
        bare = await client.get(f"/terminal/{CHAT.id}", extensions=SNI)
        assert bare.url.join(bare.headers["Location"]).path == f"/cubicle/terminal/{CHAT.id}/"
        for address in ("/", "/admin"):
            page = await client.get(address, extensions=SNI)
            assert page.status_code == 200
            sources = [part.split('"')[0] for part in page.text.split('src="')[1:]]
            assert sources
            for source in sources:
                asset = await client.get(str(page.url.join(source)), extensions=SNI)
                assert asset.status_code == 200
                assert asset.url.path.startswith("/cubicle/")
    async with httpx.AsyncClient(verify=front.trusted, trust_env=False) as outside:
        answer = await outside.get(
            f"https://127.0.0.1:{front.port}/health", headers={"Host": f"{NAME}:{front.port}"}, extensions=SNI
        )
        assert "healthy" not in answer.text


async def test_a_sign_in_by_tls_sets_a_cookie_that_no_other_name_can_set(front: Front) -> None:
    async with front.client() as client:
        answer = await client.post("/login", data={"key": KEYS["acme"]}, extensions=SNI)
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-cubicle-login-")
        assert "Secure" in cookie
        sent = {"Cookie": cookie.partition(";")[0]}
        assert (await client.get("/api/sandboxes", headers=sent, extensions=SNI)).status_code == 200


def call(command: str, **more: Any) -> dict[str, Any]:
    params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}, **more}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_output_of_a_tool_comes_while_the_command_runs(front: Front) -> None:
    """The command goes on only when the test has seen its first line."""
    body = call("echo first; until [ -e ~/go-on ]; do sleep 0.05; done; echo last", _meta={"progressToken": "p"})
    seen = ""
    async with (
        asyncio.timeout(30),
        front.client(**KEY, Accept=ACCEPT, **{"X-Chat-Id": CHAT.id}) as client,
        client.stream("POST", "/mcp", json=body, extensions=SNI) as answer,
    ):
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            seen += line
            if "first" in line:
                await front.ground.bash(CHAT, "touch ~/go-on")
    assert "last" in seen


async def test_events_of_a_chat_come_as_they_happen(front: Front) -> None:
    async with (
        front.client(**KEY) as client,
        asyncio.timeout(30),
        client.stream("GET", f"/api/chats/{CHAT.id}/events", extensions=SNI) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        await front.ground.bash(CHAT, "echo an event of the test")
        async for line in lines:
            if "an event of the test" in line:
                return
    pytest.fail("the stream ended")


async def test_a_websocket_carries_bytes_both_ways(front: Front) -> None:
    program = await front.ground.start_sockets(CHAT)
    url = f"wss://{NAME}:{front.port}/cubicle/api/chats/{CHAT.id}/ports/{program}/tcp"
    request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    request += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    async with connect(
        url, host="127.0.0.1", port=front.port, ssl=front.trusted, additional_headers=KEY, proxy=None
    ) as socket:
        await socket.send(request)
        async with asyncio.timeout(30):
            answer = await socket.recv()
    assert isinstance(answer, bytes)
    assert b"101 Switching Protocols" in answer
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer


async def test_a_large_upload_arrives_whole_and_is_not_kept_by_the_proxy(front: Front) -> None:
    block, count, digest = b"\xa5" * 2**20, 64, hashlib.sha256()

    async def content() -> AsyncIterator[bytes]:
        for number in range(count):
            digest.update(block)
            yield block
            if number == count - 1:
                kept = [path for path in front.folder.rglob("*") if path.is_file() and path.stat().st_size > 2**20]
                assert kept == []

    name = "100% größe #1?.bin"
    quoted = "100%25%20gr%C3%B6%C3%9Fe%20%231%3F.bin"
    async with front.client(**KEY) as client:
        answer = await client.post(f"/api/uploads/{CHAT.id}/{quoted}", content=content(), extensions=SNI)
        assert answer.status_code == 201, answer.text
        assert answer.json()["filename"] == name
        assert answer.json()["size"] == count * 2**20
        assert answer.json()["sha256"] == digest.hexdigest()
        back = hashlib.sha256()
        async with client.stream("GET", f"/files/{CHAT.id}/uploads/{quoted}", extensions=SNI) as file:
            assert file.status_code == 200, await file.aread()
            async for chunk in file.aiter_bytes():
                back.update(chunk)
        assert back.digest() == digest.digest()


async def test_an_upload_that_is_too_large_is_refused_before_all_of_it_is_sent(front: Front) -> None:
    size, sent = (MAX_UPLOAD_MB + 1) << 20, 0
    reader, writer = await front.connect()
    head = [
        f"POST /cubicle/api/uploads/{CHAT.id}/large.bin HTTP/1.1",
        f"Host: {NAME}:{front.port}",
        f"Authorization: {KEY['Authorization']}",
        "Content-Type: application/octet-stream",
        f"Content-Length: {size}",
    ]
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
    answer = asyncio.create_task(reader.readline())
    while not answer.done() and sent < size // 2:
        with contextlib.suppress(ConnectionError):
            writer.write(b"x" * 65536)
            await writer.drain()
        sent += 65536
        await asyncio.wait([answer], timeout=0.05)  # Caddy answers when it gets another part of the body
    async with asyncio.timeout(30):
        assert (await answer).split()[1] == b"413"
    assert sent < size // 2
    writer.close()


async def test_the_first_bytes_of_an_upload_reach_the_service_before_the_last_are_sent(front: Front) -> None:
    uploads = front.ground.folder
    reader, writer = await front.connect()
    head = [
        f"POST /cubicle/api/uploads/{CHAT.id}/slow.bin HTTP/1.1",
        f"Host: {NAME}:{front.port}",
        f"Authorization: {KEY['Authorization']}",
        "Content-Type: application/octet-stream",
        f"Content-Length: {8 << 20}",
    ]
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + b"\x5a" * (4 << 20))
    await writer.drain()

    def part() -> bool:
        """A file of the service that is growing: it has no name yet, but its process has it open."""
        folder = Path(f"/proc/{front.ground.service.pid}/fd")
        for entry in folder.iterdir():
            try:
                if entry.stat().st_size >= 1 << 20 and str(uploads) in str(entry.readlink()):
                    return True
            except OSError:
                continue
        return False

    async with asyncio.timeout(30):
        while not await asyncio.to_thread(part):
            await asyncio.sleep(0.05)
    writer.write(b"\x5a" * (4 << 20))
    await writer.drain()
    async with asyncio.timeout(30):
        assert (await reader.readline()).split()[1] == b"201"
    writer.close()


async def test_a_forged_address_does_not_count(front: Front) -> None:
    """Wrong keys are counted by address: whoever writes X-Forwarded-For does not get a new one each time."""
    statuses = []
    async with front.client() as client:
        for number in range(WRONG_KEYS + 1):
            forged = f"203.0.113.{number}"
            headers = {
                "Authorization": f"Bearer wrong-key-{number}",
                "X-Forwarded-For": forged,
                "X-Real-IP": forged,
                "Forwarded": f"for={forged}",
            }
            statuses.append((await client.get("/api/sandboxes", headers=headers, extensions=SNI)).status_code)
    assert statuses == [401] * WRONG_KEYS + [429]


async def test_a_call_of_two_minutes_without_a_byte_is_not_cut(front: Front) -> None:
    """Both proxies are told to wait; what they are told is looked at, and a shorter call is made."""
    text = (front.folder / ("nginx.conf" if front.kind == "nginx" else "Caddyfile")).read_text()
    assert ("proxy_read_timeout 12h" in text) if front.kind == "nginx" else ("read_timeout" not in text)
    async with front.client(**KEY, Accept=ACCEPT, **{"X-Chat-Id": CHAT.id}) as client:
        began = time.monotonic()
        answer = await client.post("/mcp", json=call("sleep 3; echo done"), extensions=SNI)
        assert "done" in json.dumps(answer.text)
        assert time.monotonic() - began >= 3
