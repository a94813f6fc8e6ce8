"""A WebSocket to a program of a sandbox: what comes right behind its handshake is neither lost nor waited for."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from cubicle.machine.stream import Rest, Taker
from cubicle.machine.websocket import ConnectionOver, WebSocketClient

pytestmark = pytest.mark.anyio

COUNT = 10_000


class Program:
    """A machine with one port, whose program shakes hands and sends all that it has at once; in pieces of a size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._sent = b""

    async def dial(self, _port: int, **_options: Any) -> Program:
        return self

    def put(self, data: bytes) -> bool:
        _, found, rest = data.partition(b"Sec-WebSocket-Key: ")
        if found:
            key = rest.partition(b"\r\n")[0]
            proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
            self._sent = b"\r\n".join([*lines, b"Sec-WebSocket-Accept: " + proof, b"", b""])
            self._sent += b"".join(b"\x82\x06%06d" % number for number in range(COUNT)) + b"\x88\x02\x0f\xa0"
        return True

    async def write(self, data: bytes) -> None:
        self.put(data)

    async def read(self, most: int = 65536) -> bytes:
        await asyncio.sleep(0)
        size = min(most, self._size)
        piece, self._sent = self._sent[:size], self._sent[size:]
        return piece

    async def pump(self, taker: Taker, rest: Rest) -> None:
        while chunk := await self.read():
            if not taker(chunk):
                await rest()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("size", [100, 1000, 65536])
async def test_messages_right_behind_the_handshake(size: int, follows: bool) -> None:
    client = await WebSocketClient.open(Program(size), 80, "/", most=1000)  # type: ignore[arg-type]
    assert client.heard < COUNT / 10
    seen: list[bytes] = []

    def deliver(message: bytes, _text: bool, _last: bool) -> bool:
        seen.append(message)
        return len(seen) % 100 > 0

    with pytest.raises(ConnectionOver) as over:
        if follows:
            await client.follow(deliver, lambda: asyncio.sleep(0))
        while True:
            seen.append(await client.receive())  # type: ignore[arg-type]
    assert over.value.code == 4000
    assert seen == [b"%06d" % number for number in range(COUNT)]
