"""A service that is told to end does so soon, whoever follows the ports or has a stream of one open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import websockets

from tests.ports.conftest import CHAT, Ground, ground_of


async def opened(ground: Ground, host: str, target: str, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request of which a part of the answer's body has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ground.port)
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", key, "", ""]
    writer.write("\r\n".join(lines).encode())
    assert (await reader.readline()).split()[1] == b"200"
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.readline()
    return reader, writer


async def test_streams_do_not_hold_up_the_end_of_the_service(tmp_path: Path) -> None:
    async with ground_of(tmp_path, "memory", POOL_SIZE="0") as ground, asyncio.timeout(200):
        port, sockets = await ground.start(CHAT), await ground.start_sockets(CHAT)
        own = f"Authorization: Bearer {ground.keys[CHAT.tenant]}"
        token = f"X-Cubicle-Key: {ground.token(CHAT, port)}"
        followers = [
            await opened(ground, f"127.0.0.1:{ground.port}", f"/api/chats/{CHAT.id}/ports/events", own)
            for _ in range(3)
        ]
        streams = [await opened(ground, ground.host(CHAT, port), "/events?every=1", token) for _ in range(3)]
        address = f"ws://{ground.host(CHAT, sockets)}/"
        keyed = {"X-Cubicle-Key": ground.token(CHAT, sockets)}
        async with websockets.connect(address, additional_headers=keyed, host="127.0.0.1", proxy=None) as socket:
            await asyncio.to_thread(ground.service.stop)
            await socket.wait_closed()
        for reader, writer in (*followers, *streams):
            with suppress(ConnectionError):
                while await reader.read(65536):
                    pass
            writer.close()
        log = ground.service.log()
        assert "graceful shutdown" not in log
        assert "Traceback" not in log
