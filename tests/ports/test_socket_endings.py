"""How a WebSocket ends at one side, and what the other side is told."""

from __future__ import annotations

import asyncio
from socket import SO_RCVBUF, SOL_SOCKET
from socket import socket as Socket

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.ports.conftest import CHAT, Ground, ground_on

pytestmark = pytest.mark.anyio
ground = ground_on("memory", "oci-runsc")


def socket(ground: Ground, port: int, path: str = "/") -> connect:
    headers = {"Cookie": f"cubicle-port={ground.cookie(CHAT, port)}"}
    uri = f"ws://{ground.host(CHAT, port)}{path}"
    return connect(uri, host="127.0.0.1", port=ground.port, additional_headers=headers, proxy=None)


async def endings(ground: Ground, port: int, count: int) -> list[str]:
    """What the program was closed with, each time, when it is so many times."""
    async with asyncio.timeout(60):
        while True:
            lines = (await ground.bash(CHAT, f"grep ^closed {port}.log || true")).splitlines()
            seen = [line.split()[1] for line in lines if line.startswith("closed ")]
            if len(seen) >= count:
                return seen
            await asyncio.sleep(0.1)


async def test_what_a_program_is_told_of_a_visitor_who_leaves(ground: Ground) -> None:
    port = await ground.start_sockets(CHAT)
    async with socket(ground, port) as client:
        await client.send("here")
        assert await client.recv() == "here"
        client.transport.write(b"\x88\x80" + bytes(4))  # a close frame without a code
        await client.wait_closed()
    assert await endings(ground, port, 1) == ["1000"]
    async with socket(ground, port) as client:
        await client.send("here")
        assert await client.recv() == "here"
        client.transport.abort()
    assert await endings(ground, port, 2) == ["1000", "1011"]
    async with socket(ground, port) as client:
        await client.send("here")
        assert await client.recv() == "here"
        await client.close(4321, "enough")
    assert await endings(ground, port, 3) == ["1000", "1011", "4321"]


async def test_a_program_that_leaves_without_a_code_leaves_normally(ground: Ground, sockets: int) -> None:
    async with socket(ground, sockets, "/leave") as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


async def test_a_visitor_who_reads_slowly_and_says_something_still_gets_the_last_words_of_a_program(
    ground: Ground,
) -> None:
    port, size = await ground.start_sockets(CHAT), 8 * 1024**2
    with Socket() as sock:
        sock.setsockopt(SOL_SOCKET, SO_RCVBUF, 64 * 1024)
        sock.connect(("127.0.0.1", ground.port))
        uri, cookie = f"ws://{ground.host(CHAT, port)}/farewell?{size}", ground.cookie(CHAT, port)
        headers = {"Cookie": f"cubicle-port={cookie}"}
        async with connect(uri, sock=sock, additional_headers=headers, proxy=None, max_size=None) as client:
            await client.send("say goodbye")
            client.transport.pause_reading()
            assert await endings(ground, port, 1) == ["4000"]
            await client.send("wait")
            await asyncio.sleep(0.5)  # it is taken meanwhile
            client.transport.resume_reading()
            assert len(await client.recv()) == size
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4000, "that was all")
