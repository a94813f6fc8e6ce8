"""The server below all routes."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from cubicle.http_api import uvicorn_http
from tests.support.service import serve

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


@asynccontextmanager
async def connection(open_: asyncio.Event) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """To a service that answers once it is open."""

    async def here(_request: Request) -> PlainTextResponse:
        await open_.wait()
        return PlainTextResponse("here")

    async with serve(Starlette(routes=[Route("/", here)])) as url, asyncio.timeout(30):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        yield reader, writer
        writer.close()


async def answered(reader: asyncio.StreamReader) -> None:
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert await reader.readexactly(4) == b"here"


@pytest.fixture
def opened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.real
async def test_a_quiet_connection_stays_longer_than_clients_keep_one(opened):
    """Many give it up after five seconds. If both ends do so at the same moment, a request is lost between them."""
    async with connection(opened) as (reader, writer):
        for pause in (0, 7):
            await asyncio.sleep(pause)
            writer.write(REQUEST)
            await answered(reader)


@pytest.mark.parametrize("begun", [b"", b"GET /", REQUEST[:-2] + b"X-Slow: "])
async def test_a_client_whose_request_does_not_come_is_given_up(opened, monkeypatch, begun):
    monkeypatch.setattr(uvicorn_http, "_HEAD_SECONDS", 0.3)
    async with connection(opened) as (reader, writer):
        writer.write(begun)
        ended = asyncio.create_task(reader.read())
        while not ended.done():
            writer.write(b"x" * bool(begun))  # a little from time to time is not enough
            await asyncio.sleep(0.05)
        with suppress(ConnectionError):  # the last of what was sent came too late
            assert await ended == b""


async def test_but_not_while_the_answer_before_it_is_on_its_way(monkeypatch):
    open_ = asyncio.Event()
    async with connection(open_) as (reader, writer):
        monkeypatch.setattr(
            uvicorn_http, "_HEAD_SECONDS", 0.1
        )  # not before: the first request may be late on a busy machine
        writer.write(REQUEST + REQUEST[:5])
        await asyncio.sleep(0.4)
        monkeypatch.setattr(uvicorn_http, "_HEAD_SECONDS", 60)
        await asyncio.sleep(0.4)
        open_.set()
        await answered(reader)
        writer.write(REQUEST[5:])
        await answered(reader)


TOO_MUCH = {
    "a long URL": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
    "a URL without an end": (b"GET /" + b"a" * 500_000, 414),
    "many lines": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
    "a long value": (b"GET / HTTP/1.1\r\nCookie: " + b"\\042" * 15_000 + b"\r\n\r\n", 431),
    "a value without an end": (b"GET / HTTP/1.1\r\nCookie: " + b"a" * 500_000, 431),
    "a name without an end": (b"GET / HTTP/1.1\r\n" + b"a" * 500_000, 431),
    "long lines together": (
        b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 8000 + b"\r\nA: " + (b"b" * 8000 + b"\r\nA: ") * 9,
        431,
    ),
    "many pipelined": (REQUEST * 5000, None),
    "blank lines": (b"\r\n" * 300_000, 431),
    "trailers": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 50_000, None),
    "a trailer without an end": (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"b" * 500_000,
        None,
    ),
}


@pytest.mark.parametrize("what", TOO_MUCH)
async def test_headers_over_the_limits_are_refused_and_nothing_of_them_is_kept(opened, what):
    data, status = TOO_MUCH[what]
    async with connection(opened) as (reader, writer):
        writer.write(data)
        if status is None:  # an answer is on its way: the connection just ends
            with suppress(ConnectionError):
                await reader.read()
        else:
            answer = await reader.read()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {status} ".encode())
            assert json.loads(body)["status"] == status


async def test_what_fits_the_limits_is_served(opened):
    async with connection(opened) as (reader, writer):
        url = b"/?" + b"a" * 8000
        writer.write(b"GET " + url + b" HTTP/1.1\r\n" + b"A: b\r\n" * 90 + b"Cookie: " + b"c" * 8000 + b"\r\n\r\n")
        await answered(reader)


async def test_a_connection_leaves_no_circle_behind(opened):
    gc.collect()
    gc.disable()
    try:
        async with connection(opened) as (reader, writer):
            writer.write(REQUEST)
            await answered(reader)
            held = [weakref.ref(item) for item in gc.get_objects() if type(item) is uvicorn_http.HttpConnection]
            assert held
        for _ in range(100):
            if not any(ref() is not None for ref in held):
                break
            await asyncio.sleep(0.05)
        assert not [ref() for ref in held if ref() is not None]
    finally:
        gc.enable()
