"""Bodies that come with an offer of another protocol, or do not come."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from cubicle.http_api import request_bodies

MB = 1024**2
OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


@asynccontextmanager
async def connection(site):
    host, _, port = site.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(120):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader):
    """(status, JSON) of the next answer on the connection."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))


def head(method, path, headers):
    return f"{method} /api/uploads/{path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()


@pytest.mark.parametrize("size", [3, 3 * MB])
@pytest.mark.parametrize("cut", [0, 1])
async def test_an_offer_of_another_protocol_is_passed_over_and_the_body_is_taken(site, size, cut):
    body = b"x" * size
    async with connection(site) as (reader, writer):
        for _ in range(2):  # the connection goes on behind it
            writer.write(head("POST", "offer/a", OFFER + f"Content-Length: {size}\r\n") + body[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(body[cut:])
            status, record = await answer(reader)
            assert (status, record["size"]) == (201, size)


async def test_so_it_is_with_pipelined_requests_without_a_body_and_in_chunks(site):
    one = head("GET", "offers", OFFER)
    chunked = head("POST", "offers/a", OFFER + "Transfer-Encoding: chunked\r\n") + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with connection(site) as (reader, writer):
        writer.write(one * 400 + chunked + one)
        for _ in range(400):
            assert await answer(reader) == (200, {"files": []})
        assert (await answer(reader))[1]["size"] == 5
        assert [record["size"] for record in (await answer(reader))[1]["files"]] == [5]


async def test_a_connection_that_is_to_be_closed_is_closed_in_spite_of_an_offer(site):
    offer = OFFER.replace("Upgrade,", "close, Upgrade,")
    status, answered = await site.raw(head("POST", "closed/a", offer + "Content-Length: 3\r\n") + b"abc")
    assert status == 201
    assert b'"size":3' in answered


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ("Content-Length: 10\r\n", b"abc"),
        (f"Content-Length: {3 * MB}\r\nExpect: 100-continue\r\n", b""),
        ("Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n"),
        ("Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n", FORM + b"abc"),
    ],
    ids=["of known length", "with leave", "in chunks", "as a form"],
)
async def test_a_client_that_says_nothing_any_more_is_given_up(site, monkeypatch, headers, sent):
    monkeypatch.setattr(request_bodies, "TIMEOUT", 0.2)
    async with connection(site) as (reader, writer):
        writer.write(head("POST", "silent/a", headers) + sent)
        if "Expect" in headers:
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        status, problem = await answer(reader)
    assert (status, problem["detail"]) == (400, "The upload broke off.")
    assert (await site.client.get("/api/uploads/silent")).json() == {"files": []}


WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


@pytest.mark.parametrize("size", [0, 3, 3 * MB])
async def test_a_websocket_is_not_begun_by_an_upload(site, size):
    async with connection(site) as (reader, writer):
        for _ in range(2):
            writer.write(head("POST", "socket/a", WEBSOCKET + f"Content-Length: {size}\r\n") + b"x" * size)
            status, record = await answer(reader)
            assert (status, record["size"]) == (201, size)


@pytest.mark.parametrize(
    "body", ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
)
async def test_nor_by_a_request_with_something_behind_it(site, body):
    sent = head("GET", "socket-list", WEBSOCKET)[:-2] + body.encode()
    async with connection(site) as (reader, writer):
        for _ in range(2):
            writer.write(sent)
            assert await answer(reader) == (200, {"files": []})
