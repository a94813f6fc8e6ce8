"""Requests within requests: WebSockets pass through the proxy, and nothing in which a request could hide."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from cubicle.egress.tls_authority import Authority
from tests.egress.conftest import Audit, Behind
from tests.egress.servers import Server
from tests.egress.ways import SECRET, WAYS, authority, opened, server, trust

__all__ = ["authority", "server", "trust"]

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", WAYS)]

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
SOCKET = f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
SETTINGS = "HTTP2-Settings: AAMAAABkAAQAAP__\r\n"

OFFERS = (
    ("1.1", f"Connection: Upgrade\r\nUpgrade: h2c\r\n{SETTINGS}", ""),
    ("1.1", f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n{SETTINGS}", ""),
    ("1.1", f"cOnNeCtIoN: uPgRaDe\r\nuPgRaDe: H2C\r\n{SETTINGS}", ""),
    ("1.1", f"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n{SOCKET}{SETTINGS}", ""),
    ("1.1", f"Connection: Upgrade\r\nUpgrade: h2c,websocket\r\n{SOCKET}{SETTINGS}", ""),
    ("1.1", f"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n{SOCKET}{SETTINGS}", ""),
    ("1.1", "Connection: Upgrade\r\nUpgrade: TLS/1.3, HTTP/2.0\r\n", ""),
    ("1.1", "Connection: Upgrade\r\nUpgrade: websocket/13\r\n" + SOCKET, ""),
    ("1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", ""),
    ("1.1", "Upgrade: websocket\r\n" + SOCKET, ""),
    ("1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n" + SOCKET, "hello"),
    ("1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n" + SOCKET, "0\r\n\r\n"),
    ("1.0", "Connection: Upgrade\r\nUpgrade: websocket\r\n" + SOCKET, ""),
)
"""Version, headers and body of requests that would go on in another protocol, or not as a WebSocket should."""


async def test_another_protocol_is_not_offered_to_the_server(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, server: Server, audit: Audit
) -> None:
    async with opened(kind, behind, tmp_path, server.port, trust) as way:
        hidden = f"DELETE {way.url('/echo')} HTTP/1.1\r\nHost: {way.host}\r\nConnection: close\r\n\r\n"
        for version, headers, body in OFFERS:
            offer = f"GET {way.url('/upgrade')} HTTP/{version}\r\nHost: {way.host}\r\n{headers}\r\n{body}"
            said = (await way.say((offer + hidden).encode())).decode()
            assert said.startswith("HTTP/1.1 200 "), (offer, said)
            asked, end = json.JSONDecoder().raw_decode(said, said.index("{"))
            seen = asked["headers"]
            assert not {"upgrade", "http2-settings"} & seen.keys(), offer
            assert (seen["connection"], seen["authorization"]) == ("close", SECRET), offer
            again = said[end:].startswith("HTTP/1.1 403 ")
            assert again == (version == "1.1"), f"what follows is a request like any other: {offer}"
    assert {line["method"] for line in audit.of("denied")} == {"DELETE"}
    assert len(audit.of("denied")) == sum(version == "1.1" for version, _, _ in OFFERS)
    assert server.callers == len(OFFERS)


@pytest.mark.parametrize("headers", ["Connection: Upgrade\r\nUpgrade: websocket\r\n",
                                     "connection: keep-alive, upgrade\r\nupgrade: WebSocket\r\nContent-Length: 0\r\n"])  # fmt: skip
async def test_a_websocket_passes(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, authority: Authority, headers: str
) -> None:
    seen: list[str] = []

    async def shout(socket: ServerConnection) -> None:
        assert socket.request is not None
        seen.append(socket.request.headers["Authorization"])
        async for message in socket:
            await socket.send(str(message).upper())

    tls = await asyncio.to_thread(authority.context, "api.test") if kind == "tls" else None
    async with serve(shout, "127.0.0.1", 0, ssl=tls) as sockets:
        port = next(iter(sockets.sockets)).getsockname()[1]
        async with opened(kind, behind, tmp_path, port, trust) as way, asyncio.timeout(60):
            async with way.call() as (reader, writer):
                head = f"GET {way.url('/socket')} HTTP/1.1\r\nHost: {way.host}\r\n{headers}{SOCKET}\r\n"
                writer.write(head.encode() + Frame(Opcode.TEXT, b"early").serialize(mask=True))
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
                assert await reader.readexactly(7) == b"\x81\x05EARLY"
                writer.write(Frame(Opcode.TEXT, b"more").serialize(mask=True))
                assert await reader.readexactly(6) == b"\x81\x04MORE"
            if kind == "tls":
                proxy, uri = f"http://127.0.0.1:{way.proxy}", f"wss://api.test:{port}/socket"
                async with connect(uri, proxy=proxy, ssl=way.trust, open_timeout=60) as socket:
                    await socket.send("hello")
                    assert await socket.recv() == "HELLO"
    assert set(seen) == {SECRET}


@pytest.mark.parametrize("answer", ["", f"?accept={accept_key('another')}"])
async def test_an_answer_that_begins_no_websocket_is_refused(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, server: Server, answer: str
) -> None:
    offer = f"Connection: Upgrade\r\nUpgrade: websocket\r\n{SOCKET}"
    async with opened(kind, behind, tmp_path, server.port, trust) as way:
        path = way.url(f"/upgrade{answer}")
        said = await way.say(f"GET {path} HTTP/1.1\r\nHost: {way.host}\r\n{offer}\r\nhidden\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 502 "), said
    assert b"HIDDEN" not in said


@pytest.mark.parametrize("headers", ["", "Host: api.test\r\n"])
async def test_http_2_without_an_offer_is_refused(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, server: Server, headers: str
) -> None:
    async with opened(kind, behind, tmp_path, server.port, trust, methods=[], paths=[]) as way:
        settings = bytes(3) + b"\x04" + bytes(5)
        said = await way.say(f"PRI * HTTP/2.0\r\n{headers}\r\nSM\r\n\r\n".encode() + settings)
    assert said.startswith(b"HTTP/1.1 505 "), said
    assert server.callers == 0


async def test_a_body_has_one_end(
    kind: str, behind: Behind, tmp_path: Path, trust: ssl.SSLContext, server: Server
) -> None:
    both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    async with opened(kind, behind, tmp_path, server.port, trust) as way:
        said = await way.say(f"PUT {way.url('/echo')} HTTP/1.1\r\nHost: {way.host}\r\n{both}".encode())
    asked = json.loads(said[said.index(b"{") :])
    assert asked["size"] == 5
    assert "content-length" not in asked["headers"]
