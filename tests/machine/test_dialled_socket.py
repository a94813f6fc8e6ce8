"""Connections into a sandbox's network namespace: what reaches nothing leaves nothing, and a stream keeps its word."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from cubicle.fairness.fair_queue import FairQueue, LoopShare, current
from cubicle.guest import wire
from cubicle.machine.connection import GuestLink
from cubicle.machine.dialled_socket import DialledSocket, connect_in
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import SocketSplice
from cubicle.machine.zero_copy import BrokeOff
from tests.sandbox.offering import LIMIT, open_descriptors, until
from tests.support.frames import message


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """All descriptors are closed in the end: closing goes on in a thread."""
    before = open_descriptors()
    yield
    await until(lambda: open_descriptors() <= before)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


def own_namespace() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def connected(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """(the service's end, the program's end)"""
    ours = socket.create_connection(server.getsockname())
    return ours, server.accept()[0]


async def test_a_port_of_the_namespace_is_reached(server: socket.socket, nothing_left: None) -> None:
    sock = await connect_in(own_namespace(), port_of(server))
    assert sock is not None
    with sock, server.accept()[0]:
        assert sock.getpeername() == server.getsockname()
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


async def test_a_port_that_listens_on_the_other_loopback_is_reached(nothing_left: None) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        sock = await connect_in(own_namespace(), port_of(server))
        assert sock is not None
        sock.close()


async def test_a_refused_port_is_told_apart(nothing_left: None) -> None:
    with pytest.raises(MachineError) as no:
        await connect_in(own_namespace(), 1)
    assert no.value.code == "refused"


async def test_what_is_no_network_namespace_reaches_nothing(server: socket.socket, nothing_left: None) -> None:
    assert await connect_in(os.open("/proc/self/ns/uts", os.O_RDONLY), port_of(server)) is None


async def test_a_dial_that_is_given_up_leaves_nothing(server: socket.socket, nothing_left: None) -> None:
    for _ in range(50):
        dialling = asyncio.ensure_future(connect_in(own_namespace(), port_of(server)))
        await asyncio.sleep(0)
        dialling.cancel()
        await asyncio.gather(dialling, return_exceptions=True)


# ---- the stream


class Pair:
    """A stream and the program at its other end; the line to the guest answers whatever it is asked."""

    def __init__(self, server: socket.socket, line: GuestLink, guest: socket.socket) -> None:
        sock, self.program = connected(server)
        sock.setblocking(False)
        self.stream = DialledSocket(sock, line)
        self.guest = guest
        asyncio.get_running_loop().add_reader(guest, self._answer)

    def _answer(self) -> None:
        heard = self.guest.recv(65536)
        while heard:
            length, number, kind, _ = wire.read_header(heard)
            heard = heard[wire.HEADER.size + length :]
            if kind == wire.OPEN:
                self.guest.send(message(number, wire.END))

    def kill(self) -> None:
        """The whole sandbox is over."""
        asyncio.get_running_loop().remove_reader(self.guest)
        self.guest.close()


@pytest.fixture
async def pair(server: socket.socket, nothing_left: None) -> AsyncIterator[Pair]:
    ours, guest = socket.socketpair()
    for end in (ours, guest):
        end.setblocking(False)
    line = await GuestLink.over(ours)
    pair = Pair(server, line, guest)
    yield pair
    pair.stream.close()
    pair.program.close()
    if guest.fileno() != -1:
        pair.kill()
    line.close()


async def test_what_finds_no_room_arrives_later(pair: Pair) -> None:
    sent = bytearray()
    while pair.stream.put(part := os.urandom(1024 * 1024)):
        sent += part

    def drain() -> bytes:
        heard = bytearray()
        while chunk := pair.program.recv(1024 * 1024):
            heard += chunk
        return bytes(heard)

    draining = asyncio.ensure_future(asyncio.to_thread(drain))
    async with asyncio.timeout(LIMIT):
        await pair.stream.write(b"the end")
        pair.stream.write_eof()
        assert await draining == bytes(sent) + b"the end"


async def test_a_reader_that_does_not_read_stops_the_writer(pair: Pair) -> None:
    pair.program.setblocking(False)
    pair.program.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    sent, idle = 0, 0
    async with asyncio.timeout(LIMIT):
        while idle < 50:
            try:
                sent += pair.program.send(bytes(65536))
                idle = 0
            except BlockingIOError:
                idle += 1
            await asyncio.sleep(0.002)
        assert pair.stream._size <= 2 * 1024 * 1024
        heard = 0
        while heard < sent:
            heard += len(await pair.stream.read())


class Busy(FairQueue):
    """A queue in which somebody else always has something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[LoopShare] = []

    def step(self, share: LoopShare, work: Callable[[], None]) -> None:
        self.shares.append(share)
        super().step(share, work)

    async def keep_busy(self) -> None:
        other = LoopShare("other")
        while True:
            self.charge(other, 0.001)
            await self.next(other)
            await asyncio.sleep(0)


@pytest.fixture
async def busy() -> AsyncIterator[Busy]:
    queue = Busy()
    task = asyncio.ensure_future(queue.keep_busy())
    yield queue
    task.cancel()


@pytest.mark.parametrize("spliced", [False, True])
async def test_what_comes_is_read_in_turn_and_all_of_it_comes(pair: Pair, busy: Busy, spliced: bool) -> None:
    share, sent, heard = LoopShare("tenant", "chat"), os.urandom(4_000_000), bytearray()

    async def read() -> None:
        charged = current.set((busy, share))
        try:
            while len(heard) < (1000 if spliced else len(sent)):
                heard.extend(await pair.stream.read(1000 if spliced else 65536))
            if spliced:
                await move()
        finally:
            current.reset(charged)

    async def move() -> None:
        """The rest, while the stream may wait for its turn to read."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            size = len(sent) - len(heard)
            moving = asyncio.ensure_future(pair.stream.splice(b"", size, FileThreads()).into(ours.fileno()))
            while len(heard) < len(sent):
                heard.extend(await asyncio.to_thread(theirs.recv, 65536))
            assert await moving == size

    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(pair.program.sendall, sent))
        group.create_task(read())
    assert heard == sent
    assert busy.shares
    assert all(each == share for each in busy.shares)


class Slow(FairQueue):
    """A queue in which everybody waits until the test gives the turn."""

    is_free = False

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[asyncio.Future[None]] = []

    def wait(self, share: LoopShare) -> asyncio.Future[None]:
        self.turns.append(asyncio.get_running_loop().create_future())
        return self.turns[-1]

    async def give_turn(self) -> None:
        await until(lambda: bool(self.turns))
        self.turns.pop().set_result(None)


async def test_a_turn_to_read_that_comes_late_takes_nothing_from_a_splice(pair: Pair) -> None:
    queue = Slow()
    charged = current.set((queue, LoopShare("tenant", "chat")))
    try:
        async with asyncio.timeout(LIMIT):
            reading = asyncio.ensure_future(pair.stream.read())
            await asyncio.sleep(0)
            pair.program.sendall(b"head")
            await queue.give_turn()
            assert await reading == b"head"
            pair.program.sendall(b"body")
            await until(lambda: bool(queue.turns))
            splice = pair.stream.splice(b"", 4, FileThreads())
            await queue.give_turn()
            await asyncio.sleep(0)
            ours, theirs = socket.socketpair()
            with ours, theirs:
                assert await splice.into(ours.fileno()) == 4
                assert theirs.recv(100) == b"body"
    finally:
        current.reset(charged)


async def test_a_splice_that_never_begins_leaves_nothing(pair: Pair) -> None:
    splice = pair.stream.splice(b"first", 10, FileThreads())
    splice.close()
    splice.close()
    with pytest.raises(BrokeOff):
        await splice.into(pair.program.fileno())
    unused = pair.stream.splice(b"first", 10, FileThreads())
    with pytest.raises(BrokeOff):
        await unused.into(-1)


async def test_a_splice_that_is_given_up_keeps_its_descriptors_until_the_thread_is_done(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is closed too early is the next connection's: the thread would read from that one."""
    begun, goes_on = threading.Event(), threading.Event()
    seen: list[tuple[str, ...]] = []

    def slow_read(splice: SocketSplice) -> bool:
        begun.set()
        goes_on.wait(LIMIT)
        numbers = (splice._source.fileno(), splice._reader, splice._writer)
        seen.append(tuple(os.readlink(f"/proc/self/fd/{number}") for number in numbers))
        return False

    monkeypatch.setattr(SocketSplice, "_read", slow_read)
    splice = pair.stream.splice(b"", 10, FileThreads())
    numbers = (splice._source.fileno(), splice._reader, splice._writer)
    links = tuple(os.readlink(f"/proc/self/fd/{number}") for number in numbers)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        moving = asyncio.ensure_future(splice.into(ours.fileno()))
        await asyncio.to_thread(begun.wait, LIMIT)
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        splice.close()
        pair.stream.close()
        others = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        goes_on.set()
        await until(lambda: bool(seen))
        for other in others:
            os.close(other)
    assert seen == [links]


@pytest.mark.parametrize("pumped", [False, True])
async def test_the_end_comes_after_all_that_was_sent(pair: Pair, pumped: bool) -> None:
    pair.program.sendall(b"a" * 1000)
    pair.program.close()
    heard = bytearray()

    def take(data: bytes) -> bool:
        heard.extend(data)
        return False

    async def rest() -> None:
        pass

    async with asyncio.timeout(LIMIT):
        if pumped:
            await pair.stream.pump(take, rest)
        while chunk := await pair.stream.read(300):
            assert len(chunk) <= 300
            heard += chunk
    assert heard == b"a" * 1000


async def test_a_broken_connection_raises(pair: Pair) -> None:
    pair.program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.program.close()
    with pytest.raises(MachineError):
        async with asyncio.timeout(LIMIT):
            await pair.stream.read()


async def test_the_end_of_the_sandbox_ends_it(pair: Pair) -> None:
    reading = asyncio.ensure_future(pair.stream.read())
    pair.kill()
    with pytest.raises(Gone):
        async with asyncio.timeout(LIMIT):
            await reading
    with pytest.raises(Gone):
        pair.stream.put(b"x")


@pytest.mark.parametrize("end", ["closed", "reset"])
async def test_a_program_that_ended_with_its_sandbox_is_not_taken_for_the_cause(pair: Pair, end: str) -> None:
    """The program's end may be heard before the line's."""
    if end == "reset":
        pair.program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.program.close()
    async with asyncio.timeout(LIMIT):
        while pair.stream._over is None:
            await asyncio.sleep(0)
        assert not isinstance(pair.stream._over, Gone)
        pair.kill()
        with pytest.raises(Gone):
            await pair.stream.read()


async def test_closing_waits_for_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a setting of the guest's on it, the kernel can take any time to close."""
    closing, may = threading.Event(), threading.Event()
    close = os.close

    def slow(descriptor: int) -> None:
        closing.set()
        may.wait(LIMIT)
        close(descriptor)

    monkeypatch.setattr("cubicle.machine.fd_passing.os.close", slow)
    pair.stream.close()
    assert await asyncio.to_thread(closing.wait, LIMIT)
    monkeypatch.undo()
    may.set()
