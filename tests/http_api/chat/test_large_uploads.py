"""Bodies that are taken from the socket itself: what comes before, after and instead of all their bytes."""

import asyncio
import hashlib
import json
from contextlib import asynccontextmanager

import pytest

from cubicle.core.chat import Chat
from cubicle.http_api import uvicorn_http

from .conftest import site_of

MB = 1024**2
BODY = bytes(range(256)) * 4096 * 5 + b"the end"
LIST = b"GET /api/uploads/%s HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
async def site(fleet):
    async with site_of(fleet, limit_mb=64) as site:
        yield site


@pytest.fixture(autouse=True)
def poured(monkeypatch):
    """How many bodies went that way: a test here that none did would say nothing."""
    seen = []

    class Seen(uvicorn_http.ZeroCopy):  # type: ignore[misc, name-defined]
        def __init__(self, *arguments):
            super().__init__(*arguments)
            seen.append(self)

    monkeypatch.setattr(uvicorn_http, "ZeroCopy", Seen)
    yield seen
    assert seen


def head(name, *headers):
    lines = [f"POST /api/uploads/{name} HTTP/1.1", "Host: x", f"Content-Length: {len(BODY)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


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


def is_right(record):
    return (record["size"], record["sha256"]) == (len(BODY), hashlib.sha256(BODY).hexdigest())


async def test_what_comes_behind_the_body_is_the_next_request(site):
    async with connection(site) as (reader, writer):
        writer.write(head("next/a") + BODY + head("next/b") + BODY + LIST % b"next")
        for _ in "ab":
            status, record = await answer(reader)
            assert status == 201
            assert is_right(record)
        status, listed = await answer(reader)
    assert [record["filename"] for record in listed["files"]] == ["a", "b"]
    assert all(is_right(record) for record in listed["files"])
    fetched = await site.client.get("/files/next/b")
    assert fetched.content == BODY


async def test_a_client_may_send_slowly_and_in_any_pieces(site):
    async with connection(site) as (reader, writer):
        writer.write(head("slow/a"))
        sent = 0
        for size in (1, 7, 300_000, 1, MB, MB + 1, 65_536):
            writer.write(BODY[sent : sent + size])
            await writer.drain()
            sent += size
            await asyncio.sleep(0.02)
        writer.write(BODY[sent:-1])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(BODY[-1:])
        assert is_right((await answer(reader))[1])
        writer.write(LIST % b"slow")  # the socket wakes the service for a small request too
        assert (await answer(reader))[0] == 200


async def test_a_client_that_asks_first_gets_its_leave(site):
    async with connection(site) as (reader, writer):
        writer.write(head("leave/a", "Expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert is_right((await answer(reader))[1])


async def test_one_that_breaks_off_leaves_nothing_and_what_was_there_stays(site):
    await site.client.post("/api/uploads/broken/a", content=b"old")
    async with connection(site) as (_, writer):
        writer.write(head("broken/a") + BODY[: 2 * MB])
        await writer.drain()
    listed = (await site.client.get("/api/uploads/broken")).json()["files"]
    assert [(record["filename"], record["size"]) for record in listed] == [("a", 3)]
    assert await site.bash(Chat("broken"), "ls -A /mnt/user-data/uploads") == "a\n"
    again = await site.client.post("/api/uploads/broken/a", content=BODY)
    assert is_right(again.json())


async def test_clients_that_stop_in_the_middle_hold_up_nobody(site):
    async with connection(site) as (reader, writer), connection(site) as (_, other), connection(site) as (_, third):
        for stalled in (writer, other, third):  # more than there are threads
            stalled.write(head("stall/stalled") + BODY[: 3 * MB])
            await stalled.drain()
        answers = await asyncio.gather(
            *(site.client.post(f"/api/uploads/stall/{number}", content=BODY) for number in range(8))
        )
        assert all(is_right(one.json()) for one in answers)
        writer.write(BODY[3 * MB :])
        assert is_right((await answer(reader))[1])


async def test_a_folder_in_the_way_is_said_before_the_body_is_taken(site):
    await site.client.post("/api/uploads/way/folder/x", content=BODY)
    async with connection(site) as (reader, writer):
        writer.write(head("way/folder") + BODY + LIST % b"way")
        assert (await answer(reader))[0] == 409
        assert (await answer(reader))[0] == 200
