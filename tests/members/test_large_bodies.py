"""Large bodies of requests, which the kernel moves from the client's socket to another member's.

The true server, forwarder and sockets; in the place of the other member is a server of the test.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from cubicle.core.chat import Chat
from cubicle.http_api import forwarding, request_bodies
from cubicle.http_api.forwarding import Forwarder
from cubicle.machine.socket_splice import SocketSplice
from cubicle.members.hop_keys import HopKeys
from tests.sandbox.offering import LIMIT, open_descriptors, until
from tests.support.large_bodies import BODY, MB, answer, head_of, seen_splices
from tests.support.service import serve

pytestmark = pytest.mark.anyio

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Member = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Make = Callable[[Member], Any]


async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A member that says what it got, one request after the other."""
    while True:
        line, headers = await head_of(reader)
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        writer.write(answer(b"200 OK", line.split()[1] + (b" whole" if body == BODY else b" %d" % len(body))))


def head(path: str = "/", length: int = len(BODY)) -> bytes:
    framing = f"Content-Length: {length}\r\n" if length else ""
    return f"{'PUT' if length else 'GET'} {path} HTTP/1.1\r\nHost: x\r\n{framing}\r\n".encode()


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    line, headers = await head_of(reader)
    return int(line.split()[1]), await reader.readexactly(int(headers[b"content-length"]))


@pytest.fixture(autouse=True)
def spliced(monkeypatch: pytest.MonkeyPatch) -> list[SocketSplice]:
    """What went to a member by the kernel."""
    return seen_splices(monkeypatch)


@pytest.fixture
async def client_of(tmp_path: Path, spliced: list[SocketSplice]) -> AsyncIterator[Make]:
    """Makes clients of a service whose chats are all another member's. In the end no descriptor is left."""
    before = open_descriptors()
    path = tmp_path / "member.sock"

    async def dial(_holder: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        return sock

    async def is_alive(_holder: str) -> bool:
        return True

    async def place(_chat: Chat) -> str:
        return "other"

    @asynccontextmanager
    async def closing(forwarder: Forwarder) -> AsyncIterator[None]:
        try:
            async with forwarder.watching():
                yield
        finally:
            forwarder.close()

    @asynccontextmanager
    async def make(member: Member) -> AsyncIterator[Streams]:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await member(reader, writer)
            writer.close()

        owners = SimpleNamespace(
            name="one",
            owns=lambda digest: False,
            place=place,
            records=SimpleNamespace(dial=dial, is_alive=is_alive),
            doubt=lambda *_: None,
        )
        forwarder = Forwarder(owners, HopKeys(b"s" * 32))  # type: ignore[arg-type]

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert await forwarder(scope, receive, send, Chat("room"))

        async with await asyncio.start_unix_server(run, path), closing(forwarder), serve(app) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            try:
                async with asyncio.timeout(LIMIT):
                    yield reader, writer
            finally:
                writer.transport.abort()

    yield make
    await until(lambda: open_descriptors() <= before)
    assert all(splice.is_released for splice in spliced)


async def test_what_comes_behind_the_body_is_the_next_request(client_of: Make, spliced: list[SocketSplice]) -> None:
    async with client_of(take) as (reader, writer):
        writer.write(head("/a") + BODY + head("/b") + BODY + head("/c", 0))
        assert [await answered(reader) for _ in "abc"] == [(200, b"/a whole"), (200, b"/b whole"), (200, b"/c 0")]
        assert len(spliced) >= 2
        assert sum(splice.rest for splice in spliced) < 2 * MB
        writer.write(head("/d", 0))
        assert await answered(reader) == (200, b"/d 0")


async def test_a_body_that_comes_in_parts_is_whole(client_of: Make, spliced: list[SocketSplice]) -> None:
    async with client_of(take) as (reader, writer):
        writer.write(head() + BODY[: 6 * MB])
        await writer.drain()
        await asyncio.sleep(2 * request_bodies._PATIENCE)
        writer.write(BODY[6 * MB : 7 * MB + 10])
        await asyncio.sleep(2 * request_bodies._PATIENCE)
        writer.write(BODY[7 * MB + 10 :])
        assert await answered(reader) == (200, b"/ whole")
        assert spliced


@pytest.mark.parametrize("read", [0, 3 * MB])
async def test_an_answer_before_the_body_is_read_is_passed_on_and_the_next_request_too(
    client_of: Make, spliced: list[SocketSplice], read: int
) -> None:
    async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await head_of(reader)
        if line.startswith(b"GET"):
            writer.write(answer(b"200 OK", b"next"))
            return
        await reader.readexactly(read)
        writer.write(answer(b"413 Too Large", b"no"))
        await writer.drain()
        await reader.read(-1)

    async with client_of(member) as (reader, writer):
        writer.write(head() + BODY + head("/next", 0))
        assert await answered(reader) == (413, b"no")
        assert await answered(reader) == (200, b"next")


async def test_a_member_that_hangs_up_in_the_middle_is_503_and_the_connection_goes_on(
    client_of: Make, spliced: list[SocketSplice]
) -> None:
    async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await head_of(reader)
        if line.startswith(b"GET"):
            writer.write(answer(b"200 OK", b"next"))
        else:
            await reader.readexactly(3 * MB)

    async with client_of(member) as (reader, writer):
        writer.write(head() + BODY + head("/next", 0))
        assert (await answered(reader))[0] == 503
        assert await answered(reader) == (200, b"next")
        assert spliced


async def test_a_client_that_leaves_while_the_kernel_moves_the_body_is_told_to_the_member(
    client_of: Make, spliced: list[SocketSplice]
) -> None:
    ended = asyncio.Event()

    async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        with suppress(ConnectionError):
            while await reader.read(65536):
                pass
        ended.set()

    async with client_of(member) as (_, writer):
        writer.write(head(length=1 << 40))
        while not spliced:
            writer.write(BODY)
            await writer.drain()
        writer.transport.abort()
        async with asyncio.timeout(LIMIT):
            await ended.wait()


async def test_a_connection_that_nobody_used_for_long_is_closed(
    client_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that is gone is never asked again, so nothing else would close it."""
    monkeypatch.setattr(forwarding, "_IDLE_SECONDS", 0.5)
    monkeypatch.setattr(forwarding, "_LOOK_SECONDS", 0.1)
    ended = asyncio.Event()

    async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(answer(b"200 OK", b"here"))
        await reader.read(-1)
        ended.set()

    async with client_of(member) as (reader, writer):
        writer.write(head("/", 0))
        assert await answered(reader) == (200, b"here")
        await ended.wait()
