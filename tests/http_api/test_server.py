"""The server below all routes."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.service import serve

pytestmark = pytest.mark.anyio


@pytest.mark.real
async def test_a_quiet_connection_stays_longer_than_clients_keep_one():
    """Many give it up after five seconds. If both ends do so at the same moment, a request is lost between them."""
    app = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("here"))])
    async with serve(app) as url, asyncio.timeout(30):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for pause in (0, 7):
            await asyncio.sleep(pause)
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert await reader.readexactly(4) == b"here"
        writer.close()
