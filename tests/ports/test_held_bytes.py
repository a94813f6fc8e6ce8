"""What the service holds for a chat is bounded by the number of its connections, not by the length of its messages.

A frame of a WebSocket is held until it is whole: 16 MB at most, and 64 MB of a chat at a time. Messages go on by the frame.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
from pathlib import Path

import pytest

from tests.ports.conftest import CHAT, Ground, ground_on

pytestmark = pytest.mark.anyio
ground = ground_on("memory", "docker-runc")

MB = 1 << 20
COUNT = 12
MANY = 16
"""So many frames of 16 MB are four times what a chat may hold."""
FRAME = 16 * MB
LONG = 60 * MB
QUIET_SECONDS = 4.0
"""Without a byte taken: a busy machine takes none for a second or two."""
MAX_GROWTH = COUNT * MB + 8 * MB
"""For each connection the buffers of both directions, and what the interpreter takes besides."""
MAX_HELD = 64 * MB + MANY * MB + 3 * FRAME
"""The same for many connections, what a chat may hold of frames, and copies of the one that is on its way."""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


def opened(ground: Ground, port: int, path: str) -> socket.socket:
    """A WebSocket as plain bytes, behind its handshake."""
    sock = socket.create_connection(("127.0.0.1", ground.port))
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {ground.host(CHAT, port)}",
        f"Cookie: cubicle-port={ground.cookie(CHAT, port)}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
    ]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    seen = b""
    while not seen.endswith(b"\r\n\r\n"):
        seen += sock.recv(1)
    assert seen.startswith(b"HTTP/1.1 101"), seen
    return sock


def header(size: int, *, opcode: int = 2, final: bool = True) -> bytes:
    """Of a frame of this size, masked with zeros."""
    return struct.pack("!BBQ", (0x80 if final else 0) | opcode, 0x80 | 127, size) + bytes(4)


async def pushed(sock: socket.socket, first: bytes, part: bytes, most: int) -> int:
    """How much is taken before nobody takes more."""
    sock.setblocking(False)
    loop, sent = asyncio.get_running_loop(), 0
    data = memoryview(first + part)
    while sent < most:
        try:
            sent += sock.send(data[: most - sent])
            data = memoryview(part)
        except BlockingIOError:
            writable = loop.create_future()
            loop.add_writer(sock, _done, writable)
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await writable
            except TimeoutError:
                break
            finally:
                loop.remove_writer(sock)
        except OSError:
            break  # the service closed it
    return sent


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def growth(ground: Ground, sockets: list[socket.socket], first: bytes, part: bytes, most: int) -> int:
    before = resident(ground.service.pid)
    await asyncio.gather(*(pushed(sock, first, part, most) for sock in sockets))
    return resident(ground.service.pid) - before


async def sockets_to(ground: Ground, port: int, path: str, count: int = COUNT) -> list[socket.socket]:
    return [await asyncio.to_thread(opened, ground, port, path) for _ in range(count)]


def close_code(sock: socket.socket) -> int:
    """What the service closed it with; 0 if it is open, or was cut off."""
    sock.settimeout(QUIET_SECONDS)
    try:
        frame = sock.recv(100)
    except OSError:
        return 0
    return int(struct.unpack("!H", frame[2:4])[0]) if frame[:1] == b"\x88" else 0


async def test_a_frame_over_16_mb_is_refused_by_its_header(ground: Ground, sockets: int) -> None:
    for path in ("/echo", "/deaf"):
        client = await asyncio.to_thread(opened, ground, sockets, path)
        with client:
            client.sendall(header(FRAME + 1))
            assert await asyncio.to_thread(close_code, client) == 1009
    client = await asyncio.to_thread(opened, ground, sockets, f"/long?{FRAME + 1}")
    with client:
        assert await asyncio.to_thread(close_code, client) == 1009


async def test_frames_that_never_end_are_held_within_the_budget_of_the_chat(ground: Ground, sockets: int) -> None:
    clients = await sockets_to(ground, sockets, "/deaf", MANY)
    try:
        assert await growth(ground, clients, header(FRAME), bytes(MB), FRAME) < MAX_HELD
        codes = await asyncio.gather(*(asyncio.to_thread(close_code, client) for client in clients))
        assert 1013 in codes
        await a_message_of_any_length_is_whole(ground, sockets)
    finally:
        for client in clients:
            client.close()


async def test_frames_that_a_visitor_does_not_read_are_held_within_it_too(ground: Ground, sockets: int) -> None:
    before = resident(ground.service.pid)
    clients = await sockets_to(ground, sockets, f"/long?{FRAME}", MANY)
    try:
        sizes = [before]
        async with asyncio.timeout(60):
            while len(sizes) < 3 or sizes[-1] > sizes[-2] + MB:
                await asyncio.sleep(QUIET_SECONDS / 2)
                sizes.append(resident(ground.service.pid))
        assert max(sizes) - before < MAX_HELD
    finally:
        for client in clients:
            client.close()


async def test_messages_to_a_program_that_does_not_read(ground: Ground, sockets: int) -> None:
    """In frames of 64 KB, without end."""
    clients = await sockets_to(ground, sockets, "/deaf")
    part = header(65536, opcode=0, final=False) + bytes(65536)
    try:
        assert await growth(ground, clients, header(0, final=False), part, LONG) < MAX_GROWTH
    finally:
        for client in clients:
            client.close()


async def test_pings_of_a_visitor_who_does_not_read_the_answers(ground: Ground, sockets: int) -> None:
    clients = await sockets_to(ground, sockets, "/deaf")
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    try:
        assert await growth(ground, clients, b"", ping * 2000, LONG) < MAX_GROWTH
    finally:
        for client in clients:
            client.close()


async def test_a_message_in_fragments_is_whole_however_long_it_is(ground: Ground, sockets: int) -> None:
    await a_message_of_any_length_is_whole(ground, sockets, size=70 * MB)


async def a_message_of_any_length_is_whole(ground: Ground, sockets: int, size: int = 8 * MB) -> None:
    """The program says how long it was."""
    client = await asyncio.to_thread(opened, ground, sockets, "/length")

    def exchange() -> bytes:
        client.settimeout(60)
        part = bytes(65536)
        for start in range(0, size, len(part)):
            last = start + len(part) >= size
            client.sendall(header(len(part), opcode=0 if start else 2, final=last) + part)
        return client.recv(100)

    try:
        answer = await asyncio.to_thread(exchange)
        assert answer[2:].decode() == str(size)
    finally:
        client.close()
