"""A request's work ends when its client goes away, whenever that is."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cubicle.http_api.uvicorn_http import when_gone
from tests.support.service import serve

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("before", [True, False])
async def test_a_client_that_goes_away_before_the_work_or_in_it_is_noticed(before: bool) -> None:
    began, noticed = asyncio.Event(), asyncio.Event()

    async def work(request: Request) -> Response:
        scope = dict(request.scope)  # as the proxy to ports has it
        began.set()
        while before and (await request.receive())["type"] != "http.disconnect":
            pass
        with when_gone(scope, noticed.set):
            await noticed.wait()
        return PlainTextResponse("nobody reads this")

    async with serve(Starlette(routes=[Route("/", work)])) as url, asyncio.timeout(20):
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await began.wait()
        assert not noticed.is_set()
        writer.close()
        await noticed.wait()


async def test_a_request_that_ends_late_does_not_deafen_the_next_one() -> None:
    """The answer is sent, and so the next request of the connection begins, before the first one is over."""
    next_began, first_over, noticed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Late(PlainTextResponse):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            with when_gone(scope, lambda: None):
                await super().__call__(scope, receive, send)
                await next_began.wait()
            first_over.set()

    async def first(request: Request) -> Response:
        return Late("first")

    async def second(request: Request) -> Response:
        with when_gone(request.scope, noticed.set):
            next_began.set()
            await noticed.wait()
        return PlainTextResponse("nobody reads this")

    routes = [Route("/first", first), Route("/second", second)]
    async with serve(Starlette(routes=routes)) as url, asyncio.timeout(20):
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in (b"first", b"second")))
        await first_over.wait()
        writer.close()
        await noticed.wait()
