"""The host's end of a guest connection, with a guest that breaks every rule."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cubicle.guest import operations, wire
from cubicle.machine.connection import Channel, GuestLink
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.items import Data
from tests.support.frames import message


@pytest.fixture
async def pair() -> AsyncIterator[tuple[GuestLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    line = await GuestLink.over(ours)
    yield line, theirs
    line.close()
    theirs.close()


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def everything(channel: Channel[Any, Any]) -> None:
    while True:
        await channel.get()


async def gone(line: GuestLink) -> None:
    async with asyncio.timeout(60):
        await line.lost


async def test_an_answer_that_came_while_nobody_had_time_for_it_counts(pair: tuple[GuestLink, socket.socket]) -> None:
    line, guest = pair
    asking = asyncio.create_task(line.ask(operations.Ping(), limit=0.2))
    await asyncio.sleep(0)  # one turn of the loop: it is asked, and nothing else can happen until the next
    guest.recv(65536)
    guest.send(message(1, wire.END, here=True))
    time.sleep(0.4)  # the service stands still until the time is over
    assert await asking == operations.Nothing()


async def test_a_guest_that_does_not_answer_in_time_is_gone(pair: tuple[GuestLink, socket.socket]) -> None:
    with pytest.raises(Gone, match=r"did not answer within 0\.1 s"):
        await pair[0].ask(operations.Ping(), limit=0.1)


@pytest.mark.parametrize(
    "frames",
    [
        struct.pack(">IIBBH", wire.MAX_PAYLOAD + 1, 1, wire.DATA, 0, 0),
        struct.pack(">IIBBH", 0, 1, 99, 0, 0),
        struct.pack(">IIBBH", 0xFFFFFFFF, 1, wire.END, 0, 0),
        wire.frame(1, wire.END, b"not json"),
        wire.frame(1, wire.END, b"[1]"),
        wire.frame(1, wire.END, b"[" * 100_000),
        wire.frame(1, wire.CREDIT, b"12345"),
        wire.frame(1, wire.CANCEL),
        wire.frame(1, wire.DATA, bytes(wire.MAX_PAYLOAD)) * 5,
        message(1, wire.EVENT, x=1) * 5000,
        (wire.frame(1, wire.DATA, b"", 1) + wire.frame(1, wire.DATA, b"", 2)) * 5000,
    ],
    ids=[
        *("too long", "unknown kind", "huge length", "no json", "no object", "deep json", "bad credit", "forbidden"),
        *("over the window", "flood of events", "flood of nothing"),
    ],
)
async def test_a_guest_that_breaks_a_rule_loses_the_line(pair: tuple[GuestLink, socket.socket], frames: bytes) -> None:
    line, guest = pair
    channel = line.open(operations.Ping())
    await send(guest, frames)
    await gone(line)
    with pytest.raises((Gone, MachineError)):
        await everything(channel)


async def test_frames_for_channels_that_nobody_opened_are_passed_over(pair: tuple[GuestLink, socket.socket]) -> None:
    line, guest = pair
    await send(guest, wire.frame(77, wire.DATA, b"x") + message(78, wire.OPEN, op="accepted", listener=5))
    await send(guest, message(80, wire.OPEN, op="accepted", listener="nonsense"))
    channel = line.open(operations.Ping())
    await send(guest, message(channel.number, wire.END, ok=True))
    assert await channel.answer() == operations.Nothing()


async def test_frames_in_pieces_are_put_together(pair: tuple[GuestLink, socket.socket]) -> None:
    line, guest = pair
    channel = line.open(operations.Ping())
    for byte in wire.frame(channel.number, wire.DATA, b"hello") + message(channel.number, wire.END):
        await send(guest, bytes([byte]))
    item = await channel.get()
    assert isinstance(item, Data)
    assert item.bytes == b"hello"
    assert await channel.answer() == operations.Nothing()


async def test_credit_is_given_back_as_data_is_read(pair: tuple[GuestLink, socket.socket]) -> None:
    line, guest = pair
    channel = line.open(operations.Read(path="/x"))
    await asyncio.get_running_loop().sock_recv(guest, 65536)
    for _ in range(4):
        await send(guest, wire.frame(channel.number, wire.DATA, bytes(wire.MAX_PAYLOAD)))
    for _ in range(4):
        await channel.get()
    wanted, received = wire.credit(channel.number, wire.MAX_PAYLOAD) * 4, b""
    async with asyncio.timeout(60):
        while len(received) < len(wanted):
            received += await asyncio.get_running_loop().sock_recv(guest, 65536)
    assert received == wanted


async def test_sending_waits_for_the_guests_credit(pair: tuple[GuestLink, socket.socket]) -> None:
    line, guest = pair
    channel = line.open(operations.Write(path="/x"))
    sending = asyncio.create_task(channel.send(bytes(wire.WINDOW * 2)))
    got = 0
    loop = asyncio.get_running_loop()
    while got < wire.WINDOW:
        got += len(await loop.sock_recv(guest, 1 << 20))
    await asyncio.sleep(0.05)
    assert not sending.done()
    await send(guest, wire.credit(channel.number, 0xFFFFFFFF))
    while got < wire.WINDOW * 2:
        got += len(await loop.sock_recv(guest, 1 << 20))
    async with asyncio.timeout(60):
        await sending


async def test_a_lost_line_ends_every_wait(pair: tuple[GuestLink, socket.socket]) -> None:
    line, guest = pair
    waits = [asyncio.create_task(line.open(operations.Run(argv=["x"])).answer()) for _ in range(10)]
    sending = asyncio.create_task(line.open(operations.Write(path="/x")).send(bytes(wire.WINDOW * 3)))
    await asyncio.sleep(0)
    guest.close()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*waits, return_exceptions=True)
        await sending
    assert all(isinstance(result, Gone) for result in results)
    with pytest.raises(Gone):
        line.open(operations.Ping())


async def test_random_bytes_never_hang_or_crash_the_host() -> None:
    seed = random.Random(os.environ.get("CUBICLE_SEED", "1"))
    for _ in range(int(os.environ.get("CUBICLE_FUZZ", "400"))):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        line = await GuestLink.over(ours)
        channel = line.open(operations.Run(argv=["x"]))
        data = b"".join(
            struct.pack(">IIBBH", len(body), seed.choice([1, 1, 1, 2, 3]), seed.randrange(10), seed.randrange(3), 0)
            + body
            for body in (seed.randbytes(seed.randrange(40)) for _ in range(seed.randrange(20)))
        )
        await send(theirs, data)
        theirs.close()
        async with asyncio.timeout(60):
            await line.lost
            with pytest.raises((Gone, MachineError)):
                await everything(channel)


async def test_crumbs_that_nobody_reads_yet_are_kept_as_few_and_come_in_their_order(
    pair: tuple[GuestLink, socket.socket],
) -> None:
    line, guest = pair
    channel = line.open(operations.Run(argv=["x"]))
    crumbs = [wire.frame(1, wire.DATA, bytes([n % 251]), 1) for n in range(100_000)]
    await send(guest, b"".join(crumbs) + wire.frame(1, wire.DATA, b"error", 2) + message(1, wire.END, code=0))
    async with asyncio.timeout(60):
        while not channel.over:
            await asyncio.sleep(0.01)
    assert len(channel._items) < 100
    heard = {1: b"", 2: b""}
    while isinstance(item := await channel.get(), Data):
        heard[item.stream] += item.bytes
    assert heard == {1: bytes(n % 251 for n in range(100_000)), 2: b"error"}


async def test_a_line_that_is_lost_while_the_guest_is_asked_ends_the_asking_at_once(
    pair: tuple[GuestLink, socket.socket],
) -> None:
    line, guest = pair
    checking = asyncio.create_task(line.check())
    await asyncio.sleep(0)
    guest.close()
    async with asyncio.timeout(10):
        with pytest.raises(Gone, match="ended, or the connection"):
            await checking
    assert not line.liveness.given_up
