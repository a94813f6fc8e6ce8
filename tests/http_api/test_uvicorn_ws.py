"""A client's WebSocket: what is not taken is not read, and what is taken keeps its order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cubicle.fairness.fair_queue import FairQueue, LoopShare, metered
from cubicle.http_api.uvicorn_ws import ClientSocket
from tests.support.service import serve

pytestmark = pytest.mark.anyio

PART = bytes(64 * 1024)
MAX_COUNT = 64 * 1024**2


@asynccontextmanager
async def served(take: asyncio.Event, taken: list[bytes]) -> AsyncIterator[str]:
    """An application that accepts, and takes messages only when it is told to."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await take.wait()
        while (event := await receive())["type"] == "websocket.receive":
            taken.append(event["bytes"])

    async with serving(application) as address:
        yield address


@asynccontextmanager
async def serving(application: ASGIApp, **options: Any) -> AsyncIterator[str]:
    async with serve(application, **options) as url:
        yield f"{url.replace('http', 'ws', 1)}/"


async def test_a_client_that_nobody_listens_to_is_made_to_wait() -> None:
    take, taken = asyncio.Event(), list[bytes]()
    async with served(take, taken) as address, connect(address, compression=None) as client:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while sent * len(PART) < MAX_COUNT:
                await client.send(sent.to_bytes(4, "big") + PART)
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while before != sent or not sent:  # until all that lies between them is full
            before = sent
            await asyncio.sleep(0.5)
        assert 0 < sent * len(PART) < MAX_COUNT / 2
        take.set()
        async with asyncio.timeout(60):
            await flooding
            await client.close()
            while len(taken) < sent:
                await asyncio.sleep(0.05)
    assert [int.from_bytes(message[:4], "big") for message in taken] == list(range(sent))


class Relay:
    """An application that takes messages as they come, from when it is told to, and keeps them."""

    def __init__(self) -> None:
        self.begin = asyncio.Event()
        self.taken: list[tuple[bytes, bool]] = []
        self.left: list[int] = []
        self.holds = False
        self.socket: ClientSocket | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = WebSocket(scope, receive, send)
        await client.accept()
        await self.begin.wait()
        self.socket = ClientSocket.of(client)
        self.socket.take(self.take)
        self.left.append((await client.receive())["code"])

    def take(self, message: bytes, text: bool, _last: bool) -> None:
        self.taken.append((bytes(message), text))
        if self.holds:
            assert self.socket is not None
            self.socket.hold()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.taken) < count:
                await asyncio.sleep(0.01)


async def test_messages_that_came_before_they_were_taken_come_first() -> None:
    relay = Relay()
    sent: list[str | bytes] = ["one", b"two", "three \N{SNOWMAN}", b"", "", b"six"]
    async with serving(relay) as address, connect(address, compression=None) as client:
        for message in sent[:3]:
            await client.send(message)
        await asyncio.sleep(0.05)
        relay.begin.set()
        for message in sent[3:]:
            await client.send(message)
        await client.send(["in ", "four ", "parts", ""])
        await relay.has(len(sent) + 1)
        await client.close(4001)
    expected = [(m.encode(), True) if isinstance(m, str) else (m, False) for m in sent]
    assert relay.taken == [*expected, (b"in four parts", True)]
    assert relay.left == [4001]


async def test_a_flood_that_waits_for_its_turn_is_made_to_wait() -> None:
    """What comes while others have the loop stays with the sender: kept here, it would be copied with each packet."""
    relay, queue, share = Relay(), FairQueue(), LoopShare("flood")

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        socket = ClientSocket.under(scope)
        assert socket is not None
        socket.meter(queue, share)
        await relay(scope, receive, send)

    async with serving(application) as address, connect(address, compression=None) as client:
        relay.begin.set()
        await client.send(b"first")
        await relay.has(1)
        socket = relay.socket
        assert socket is not None
        socket._parsing = True  # as long as its turn does not come
        flooding = asyncio.create_task(_send_many(client, 100))
        held = 0
        for _ in range(30):
            await asyncio.sleep(0.01)
            held = max(held, len(socket._unparsed))
        assert 0 < held <= 512 * 1024
        socket._parsing = False
        socket._parse_soon()
        async with asyncio.timeout(60):
            await flooding
        await relay.has(101)
    assert [len(message) for message, _ in relay.taken] == [5] + [len(PART)] * 100


async def test_a_flood_is_made_to_wait_though_each_message_is_taken() -> None:
    """The base reads on as soon as nothing waits to be taken; what was not looked at yet may be more and more."""
    queue, share, most, taken = FairQueue(), LoopShare("flood"), 0, 0

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        socket = ClientSocket.under(scope)
        assert socket is not None
        socket.meter(queue, share)
        await metered(take(socket, receive, send), queue, share)

    async def take(socket: ClientSocket, receive: Receive, send: Send) -> None:
        nonlocal most, taken
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            taken += 1
            most = max(most, len(socket._unparsed))
            queue.charge(LoopShare("other"), 0.001)  # others are busy, too
            await asyncio.sleep(0)

    async with serving(application) as address, connect(address, compression=None) as client:

        async def flood() -> None:
            for _ in range(8000):
                client.protocol.send_binary(b"a" * 10)
            data = b"".join(client.protocol.data_to_send())
            while taken < 1000:
                client.transport.write(data)
                await asyncio.sleep(0)

        flooding = asyncio.create_task(flood())
        async with asyncio.timeout(60):
            await flooding
        client.transport.abort()
    assert most <= 512 * 1024


@pytest.mark.parametrize("size", [10, 100_000, 50_000_000], ids=["little", "much", "without end"])
async def test_a_refused_client_is_let_go_though_its_turn_does_not_come(size: int) -> None:
    """What it sends on is dropped: kept until its turn, thousands of refused connections would be kept with it."""
    queue, ready, refuse = FairQueue(), asyncio.Event(), asyncio.Event()
    sockets: list[ClientSocket] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        socket = ClientSocket.under(scope)
        assert socket is not None
        sockets.append(socket)
        socket.meter(queue, LoopShare("flood"))
        await receive()
        await send({"type": "websocket.accept"})
        socket._parsing = True  # its turn never comes
        ready.set()
        await refuse.wait()
        await send({"type": "websocket.close", "code": 1013})

    async with serving(application) as address, asyncio.timeout(8):  # uvicorn waits 10 s for the other's close frame
        async with connect(address, compression=None, max_size=None, close_timeout=1) as client:
            await ready.wait()
            await client.send(b"before")
            sending = asyncio.create_task(_send_bytes(client, size))
            refuse.set()
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
            await asyncio.gather(sending, return_exceptions=True)
            if size < 1024:
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1013
        (socket,) = sockets
        while not socket.disconnected:
            await asyncio.sleep(0.01)
        assert not socket._unparsed


async def _send_bytes(client: ClientConnection, size: int) -> None:
    for _ in range(0, size, len(PART)):
        await client.send(PART[:size])


async def _send_many(client: ClientConnection, count: int) -> None:
    for _ in range(count):
        await client.send(PART)


async def test_text_that_is_none_is_refused_and_not_taken() -> None:
    relay = Relay()
    relay.begin.set()
    async with serving(relay) as address, connect(address, compression=None) as client:
        await client.send("good")
        await relay.has(1)
        client.protocol.send_text(b"\xff\xfe")
        client.send_data()
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(60):
                await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007
    assert relay.taken == [(b"good", True)]


async def test_a_client_that_is_held_is_made_to_wait() -> None:
    relay = Relay()
    relay.holds = True
    relay.begin.set()
    async with serving(relay) as address, connect(address, compression=None) as client:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while sent * len(PART) < MAX_COUNT:
                await client.send(sent.to_bytes(4, "big") + PART)
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while before != sent or not sent:  # until all that lies between them is full
            before = sent
            await asyncio.sleep(0.5)
        assert 0 < sent * len(PART) < MAX_COUNT / 2
        assert len(relay.taken) * len(PART) < 1024**2
        relay.holds = False
        assert relay.socket is not None
        relay.socket.go_on()
        async with asyncio.timeout(60):
            await flooding
        await relay.has(sent)
    assert [int.from_bytes(message[:4], "big") for message, _ in relay.taken] == list(range(sent))


async def test_messages_are_passed_on_until_the_client_has_enough() -> None:
    relay = Relay()
    relay.begin.set()
    async with serving(relay) as address, connect(address, compression=None, max_queue=1) as client:
        await client.send("begin")
        await relay.has(1)
        socket = relay.socket
        assert socket is not None
        passed = 0
        while socket.pass_on(passed.to_bytes(4, "big") + PART, False):
            passed += 1
            assert passed * len(PART) < MAX_COUNT
        waiting = asyncio.create_task(socket.room())
        async with asyncio.timeout(60):
            for number in range(passed + 1):
                assert (await client.recv())[:4] == number.to_bytes(4, "big")
            await waiting
        assert socket.pass_on("fin \N{SNOWMAN}".encode(), True)
        assert await client.recv() == "fin \N{SNOWMAN}"


async def test_a_client_that_reads_nothing_more_is_found() -> None:
    """It does not answer pings either; what it was sent would never let the connection close."""
    relay = Relay()
    relay.begin.set()
    mute = {"max_queue": 1, "ping_interval": None, "compression": None}
    async with (
        serving(relay, ws_ping_interval=0.5, ws_ping_timeout=0.5) as address,
        connect(address, **mute) as client,  # type: ignore[arg-type]
    ):
        await client.send("begin")
        await relay.has(1)
        assert relay.socket is not None
        for _ in range(MAX_COUNT // len(PART)):  # more than the kernel keeps for anybody
            relay.socket.pass_on(PART, False)
        async with asyncio.timeout(60):
            while not relay.left:
                await asyncio.sleep(0.05)
        client.transport.abort()


async def test_a_client_may_pause_where_that_is_expected_of_it() -> None:
    relay = Relay()
    relay.begin.set()
    pausing = {"max_queue": 1, "ping_interval": None, "compression": None}
    async with (
        serving(relay, ws_ping_interval=0.1, ws_ping_timeout=0.1) as address,
        connect(address, **pausing) as client,  # type: ignore[arg-type]
    ):
        await client.send("begin")
        await relay.has(1)
        assert relay.socket is not None
        relay.socket.be_patient()
        for _ in range(MAX_COUNT // len(PART)):
            relay.socket.pass_on(PART, False)
        await asyncio.sleep(2)
        assert not relay.left
        async with asyncio.timeout(60):
            for _ in range(MAX_COUNT // len(PART)):
                assert await client.recv() == PART


async def test_a_client_that_is_held_is_not_taken_for_gone() -> None:
    """Its answers to pings are behind what is not read yet."""
    relay = Relay()
    relay.holds = True
    relay.begin.set()
    async with (
        serving(relay, ws_ping_interval=0.1, ws_ping_timeout=0.1) as address,
        connect(address, compression=None, ping_interval=None) as client,
    ):
        await client.send("first")
        await relay.has(1)
        await client.send("second")
        await asyncio.sleep(1)
        assert not relay.left
        assert relay.socket is not None
        relay.socket.go_on()
        await relay.has(2)
        assert [message for message, _ in relay.taken] == [b"first", b"second"]


async def test_the_key_of_a_link_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close" if "refused" in scope["path"] else "websocket.accept"})

    caplog.set_level("INFO")
    async with serving(application) as address:
        async with connect(f"{address}?key=secret-of-a-link"):
            pass
        with pytest.raises(InvalidStatus):
            await connect(f"{address}refused?key=secret-of-a-link")
    said = [record.getMessage() for record in caplog.records]
    assert not [line for line in said if "secret-of-a-link" in line]


async def test_a_client_that_leaves_while_it_is_held_is_found() -> None:
    relay = Relay()
    relay.holds = True
    relay.begin.set()
    async with (
        serving(relay, ws_ping_interval=0.2, ws_ping_timeout=0.2) as address,
        connect(address, compression=None, ping_interval=None) as client,
    ):
        await client.send("first")
        await relay.has(1)
        with contextlib.suppress(TimeoutError):
            while True:
                await asyncio.wait_for(client.send(PART), 0.5)
        client.transport.abort()
        async with asyncio.timeout(20):
            while not relay.left:
                await asyncio.sleep(0.05)
