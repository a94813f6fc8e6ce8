"""Whom a request is charged to, from its first step on."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cubicle.core.keys import KeyRing
from cubicle.fairness.fair_queue import STRANGERS, FairQueue, LoopShare, metered
from cubicle.http_api.fair_share import FairShare, charge_to
from cubicle.http_api.uvicorn_http import HttpConnection, connection_under
from tests.support.service import serve

pytestmark = pytest.mark.anyio


def keep_busy(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


@pytest.mark.parametrize("at_once", [2, 8, 200])
async def test_a_tenant_does_not_work_in_the_turns_of_strangers(at_once: int) -> None:
    """A caller with a link is a stranger until it is read: what follows is not done before what others have waited for."""
    queue, done, over = FairQueue(), list[str](), False

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await charge_to(scope, "flood", "chat")
        keep_busy(0.002)
        done.append("flood")

    async def other() -> None:
        nonlocal over
        for _ in range(20):
            keep_busy(0.0002)
            done.append("other")
            await asyncio.sleep(0)
        over = True

    share = FairShare(application, queue, KeyRing.parse("0123456789abcdef"))

    async def visits() -> None:
        while not over:
            scope = {"type": "http", "path": "/files/a/", "headers": [], "client": ("127.0.0.2", 1)}
            await share(scope, None, None)  # type: ignore[arg-type]
            await asyncio.sleep(0)

    async def call() -> None:
        await asyncio.sleep(0)
        await metered(other(), queue, LoopShare("other"))

    async with asyncio.timeout(60):
        await asyncio.gather(*(visits() for _ in range(at_once)), call())
    assert len(done) - done[::-1].index("other") < 20 * 3 + at_once, "the other tenant waited for the flood"


async def test_what_was_done_for_a_stranger_is_charged_to_strangers() -> None:
    queue = FairQueue()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        keep_busy(0.02)
        await charge_to(scope, "known")
        keep_busy(0.01)

    scope = {"type": "http", "path": "/files/a/", "headers": [], "client": ("127.0.0.2", 1)}
    await FairShare(application, queue, KeyRing.parse("0123456789abcdef"))(scope, None, None)  # type: ignore[arg-type]
    assert 0.02 <= queue._tenants["?"].used < 0.03
    assert 0.01 <= queue._tenants["known"].used - queue._now < 0.02


@pytest.mark.parametrize(("keys", "next_is"), [("aa", "a"), ("ab", STRANGERS), ("abb", STRANGERS)])
async def test_a_connection_of_several_tenants_is_no_ones(keys: str, next_is: str) -> None:
    """As those of a reverse proxy are: what comes next would wait behind the flood of whoever came before."""
    seen: list[HttpConnection] = []

    async def note(request: Request) -> Response:
        connection = connection_under(request.scope)
        assert connection is not None
        seen.append(connection)
        return Response("")

    ring = KeyRing.parse("", json.dumps({f"{name}-key-0123456789abcdef0123456789": name for name in "ab"}))
    app = Starlette(routes=[Route("/", note)], middleware=[Middleware(FairShare, FairQueue(), ring)])
    app.state.fair_queue = FairQueue()
    async with serve(app) as url, httpx.AsyncClient() as client:
        for name in keys:
            await client.get(url, headers={"Authorization": f"Bearer {name}-key-0123456789abcdef0123456789"})
        assert len({id(each) for each in seen}) == 1
        assert seen[0]._share.tenant == next_is
