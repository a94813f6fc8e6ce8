"""What a client sends is parsed in the fair queue, in pieces: nothing is lost, doubled or out of order by it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from cubicle.core.keys import KeyRing
from cubicle.fairness.fair_queue import FairQueue, LoopShare, task_factory
from cubicle.http_api.fair_share import FairShare
from tests.support.service import serve


async def echo(request: Request) -> PlainTextResponse:
    digest = hashlib.sha256(await request.body()).hexdigest()
    return PlainTextResponse(f"{request.query_params['n']} {digest}\n")


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    app = Starlette(routes=[Route("/", echo, methods=["POST"])])
    queue = app.state.fair_queue = FairQueue()
    async with serve(app) as url, asyncio.TaskGroup() as group:
        flood = group.create_task(keep_busy(queue))
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)
        flood.cancel()


async def keep_busy(queue: FairQueue) -> None:
    """Others always wait, so that nothing is parsed at once."""
    while True:
        queue.charge(LoopShare("other"), 0.001)
        await queue.next(LoopShare("other"))
        await asyncio.sleep(0)


async def test_pipelined_requests_in_any_pieces_are_answered_in_their_order(address: tuple[str, int]) -> None:
    chance = random.Random(1)
    bodies = [chance.randbytes(chance.choice((0, 1, 5_000, 70_000))) for _ in range(40)]
    sent = b"".join(
        b"POST /?n=%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (number, len(body), body)
        for number, body in enumerate(bodies)
    )
    reader, writer = await asyncio.open_connection(*address)

    async def send() -> None:
        start = 0
        while start < len(sent):
            end = start + chance.choice((1, 100, 10_000, 300_000))
            writer.write(sent[start:end])
            await writer.drain()
            start = end

    sending = asyncio.create_task(send())
    for number, body in enumerate(bodies):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert await reader.readexactly(size) == f"{number} {hashlib.sha256(body).hexdigest()}\n".encode()
    await sending
    writer.close()
    await writer.wait_closed()


async def test_who_leaves_while_his_request_waits_leaves_nothing(address: tuple[str, int]) -> None:
    for _ in range(20):
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /?n=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + bytes(50_000))
        writer.transport.abort()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /?n=7 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).split(b"\r\n\r\n")[1].startswith(b"7 ")
    writer.close()
    await writer.wait_closed()


async def test_pipelined_requests_wait_for_their_turns_like_all_others() -> None:
    """Each is started by the end of the one before, and is no part of it."""
    now = most = 0

    async def work(_request: Request) -> PlainTextResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        ends = time.thread_time() + 0.001
        while time.thread_time() < ends:
            pass
        return PlainTextResponse("done")

    async def count_anew() -> None:
        nonlocal now
        while True:
            now = 0
            await asyncio.sleep(0)

    app = Starlette(routes=[Route("/", work)])
    queue = app.state.fair_queue = FairQueue()
    app.add_middleware(FairShare, queue=queue, ring=KeyRing.parse("", ""))
    clients, requests = 20, 25
    asyncio.get_running_loop().set_task_factory(task_factory)
    async with serve(app) as url, asyncio.timeout(60), asyncio.TaskGroup() as group:
        counting = group.create_task(count_anew())
        host, port = url.removeprefix("http://").split(":")
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(clients)]
        for _, writer in connections:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * requests)
        for reader, writer in connections:
            for _ in range(requests):
                await reader.readuntil(b"done")
            writer.close()
            await writer.wait_closed()
        counting.cancel()
    assert most < clients / 2  # of one turn of the event loop
