"""The control channel: order, limits, descriptors, and a peer that breaks the rules."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cubicle.worker.channel import MAX_MESSAGE, ChannelLost, ControlChannel, Fields, channel_pair

pytestmark = pytest.mark.anyio


class Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.heard: list[Any] = []
        self.sockets: list[socket.socket] = []
        self.hold = asyncio.Event()
        self.channel = ControlChannel(sock, {"note": self._note, "ask": self._ask, "take": self._take})

    def _note(self, fields: Fields, sockets: list[socket.socket]) -> None:
        self.heard.append(fields["value"])

    def _ask(self, fields: Fields, sockets: list[socket.socket]) -> Any:
        async def answer() -> Fields:
            await self.hold.wait()
            if fields.get("fails"):
                raise ValueError("no")
            return {"value": fields["value"] * fields.get("times", 1)}

        return answer()

    def _take(self, fields: Fields, sockets: list[socket.socket]) -> None:
        self.sockets += sockets


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Peer, Peer]]:
    ours, theirs = (Peer(sock) for sock in channel_pair())
    yield ours, theirs
    ours.channel.close()
    theirs.channel.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_notices_come_in_order_and_questions_are_answered(pair: tuple[Peer, Peer]) -> None:
    ours, theirs = pair
    for number in range(2000):
        assert ours.channel.notify("note", value=number)
    theirs.hold.set()
    assert (await ours.channel.ask("ask", limit=30, value=7))["value"] == 7
    assert theirs.heard == list(range(2000))


async def test_an_answer_that_fails_is_too_long_or_does_not_come_is_an_error(pair: tuple[Peer, Peer]) -> None:
    ours, theirs = pair
    with pytest.raises(ChannelLost, match="within"):
        await ours.channel.ask("ask", limit=0.05, value=1)
    theirs.hold.set()
    with pytest.raises(ChannelLost, match="no"):
        await ours.channel.ask("ask", limit=30, value=1, fails=True)
    with pytest.raises(ChannelLost, match="too long"):
        await ours.channel.ask("ask", limit=30, value="x", times=MAX_MESSAGE)
    assert (await ours.channel.ask("ask", limit=30, value=1))["value"] == 1


async def test_a_socket_goes_with_its_message_and_no_copy_stays(pair: tuple[Peer, Peer]) -> None:
    ours, theirs = pair
    one, other = socket.socketpair()
    theirs.hold.set()
    await ours.channel.ask("ask", limit=30, value=1)
    ours.channel._send({"op": "take"}, [one])
    await until(lambda: theirs.sockets)
    assert one.fileno() == -1
    theirs.sockets[0].sendall(b"through")
    theirs.sockets[0].close()
    other.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(other, 100) == b"through"
    assert await asyncio.get_running_loop().sock_recv(other, 100) == b""
    other.close()


async def test_a_peer_that_does_not_read_costs_a_bounded_amount(pair: tuple[Peer, Peer]) -> None:
    ours, theirs = pair
    asyncio.get_running_loop().remove_reader(theirs.channel._sock.fileno())
    sent = 0
    while ours.channel.notify("note", value="x" * 10_000):
        sent += 10_000
    assert sent < 8 << 20
    assert ours.channel.congested
    with pytest.raises(ChannelLost, match="no more"):
        await ours.channel.ask("ask", limit=30, value="x" * 10_000)


@pytest.mark.parametrize(
    "packet",
    [
        b"no json",
        b"[]",
        b'{"op": "unknown"}',
        b'{"op": "note"}',
        b'{"op": ["note"]}',
        json.dumps({"op": "note", "value": "x" * MAX_MESSAGE}).encode(),
        b'{"op":"note","value":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
async def test_a_peer_that_breaks_the_rules_is_cut_off(packet: bytes) -> None:
    ours, theirs = channel_pair()
    peer = Peer(ours)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.send(packet)
    async with asyncio.timeout(30):
        await peer.channel.closed.wait()
    theirs.close()


async def test_what_is_no_socket_is_dropped_and_those_who_wait_hear_of_the_end(pair: tuple[Peer, Peer]) -> None:
    ours, theirs = pair
    asking = asyncio.create_task(ours.channel.ask("ask", limit=30, value=1))
    await until(lambda: theirs.channel._answering)
    reader, writer = os.pipe()
    socket.send_fds(ours.channel._sock, [b'{"op":"take"}'], [reader])
    os.close(reader)
    theirs.channel.notify("note", value=1)
    await until(lambda: ours.heard)
    theirs.channel.close()
    with pytest.raises(ChannelLost):
        await asking
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")  # no reader is left
    os.close(writer)
