"""A client's WebSocket: what is not taken is not read, and what is taken keeps its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect

from cubicle.http_api.bridge import SERVER_OPTIONS

pytestmark = pytest.mark.anyio

PART = bytes(64 * 1024)
MOST = 64 * 1024**2


@asynccontextmanager
async def served(take: asyncio.Event, taken: list[bytes]) -> AsyncIterator[str]:
    """An application that accepts, and takes messages only when it is told to."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await take.wait()
        while (event := await receive())["type"] == "websocket.receive":
            taken.append(event["bytes"])

    options = uvicorn.Config(application, port=0, log_config=None, lifespan="off", **SERVER_OPTIONS)
    server = uvicorn.Server(options)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
        server.should_exit = True
        await running


async def test_a_client_that_nobody_listens_to_is_made_to_wait() -> None:
    take, taken = asyncio.Event(), list[bytes]()
    async with served(take, taken) as address, connect(address, compression=None) as client:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while sent * len(PART) < MOST:
                await client.send(sent.to_bytes(4, "big") + PART)
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while before != sent or not sent:  # until all that lies between them is full
            before = sent
            await asyncio.sleep(0.5)
        assert 0 < sent * len(PART) < MOST / 2
        take.set()
        async with asyncio.timeout(60):
            await flooding
            await client.close()
            while len(taken) < sent:
                await asyncio.sleep(0.05)
    assert [int.from_bytes(message[:4], "big") for message in taken] == list(range(sent))
