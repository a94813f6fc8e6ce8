"""The server below all routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from cubicle.http_api import intake
from tests.service import serve

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
    monkeypatch.setattr(intake, "_HEAD_SECONDS", 0.3)
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
        monkeypatch.setattr(intake, "_HEAD_SECONDS", 0.1)  # not before: the first request may be late on a busy machine
        writer.write(REQUEST + REQUEST[:5])
        await asyncio.sleep(0.4)
        monkeypatch.setattr(intake, "_HEAD_SECONDS", 60)
        await asyncio.sleep(0.4)
        open_.set()
        await answered(reader)
        writer.write(REQUEST[5:])
        await answered(reader)
