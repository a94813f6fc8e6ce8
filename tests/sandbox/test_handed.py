"""A socket out of a sandbox: what is none is refused and closed, and what is one can hold nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cubicle.guest import wire
from cubicle.sandbox import handed
from cubicle.sandbox.handed import HandedStream, NotHanded
from cubicle.sandbox.line import Gone, Line, MachineError
from cubicle.sandbox.machine import Machine
from cubicle.sandbox.stream import Stream
from tests.sandbox.offering import LIMIT, offering, open_descriptors, until

END = wire.message(1, wire.END)


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


def connected(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """(what the guest hands over, the program's end)"""
    ours = socket.create_connection(server.getsockname())
    return ours, server.accept()[0]


async def offered(port: int, *messages: tuple[bytes, list[int]]) -> socket.socket:
    """What `receive` makes of a guest that answers so."""
    async with offering(messages) as link:
        return await handed.receive(link, port)


async def test_a_connection_to_the_port_is_taken(server: socket.socket, nothing_left: None) -> None:
    given, program = connected(server)
    with given, program:
        sock = await offered(port_of(server), (END, [given.fileno()]))
        assert not os.get_inheritable(sock.fileno())
        assert sock.getpeername() == server.getsockname()
        sock.close()


async def test_half_an_answer_is_waited_for(server: socket.socket, nothing_left: None) -> None:
    given, program = connected(server)
    with given, program:
        (await offered(port_of(server), (END[:5], [given.fileno()]), (END[5:], []))).close()


def _file(folder: Path) -> int:
    return os.open(folder / "file", os.O_CREAT | os.O_RDWR)


def _pipe(folder: Path) -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def _elsewhere(folder: Path) -> int:
    with socket.create_server(("127.0.0.1", 0)) as other:
        return socket.create_connection(other.getsockname()).detach()


WRONG: dict[str, Callable[[Path], int]] = {
    "a file": _file,
    "a folder": lambda folder: os.open(folder, os.O_RDONLY),
    "a path": lambda folder: os.open(folder, os.O_PATH),
    "a device": lambda folder: os.open("/dev/zero", os.O_RDWR),
    "a terminal": lambda folder: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
    "a pipe nobody writes to": _pipe,
    "a Unix socket": lambda folder: socket.socketpair()[0].detach(),
    "a datagram socket": lambda folder: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach(),
    "a netlink socket": lambda folder: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).detach(),
    "an unconnected socket": lambda folder: socket.socket().detach(),
    "a listening socket": lambda folder: socket.create_server(("127.0.0.1", 0)).detach(),
    "a connection elsewhere": _elsewhere,
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", WRONG)
async def test_what_is_no_connection_to_the_port_is_refused(name: str, tmp_path: Path, server: socket.socket) -> None:
    wrong = WRONG[name](tmp_path)
    before = open_descriptors()
    with pytest.raises(NotHanded):
        await offered(port_of(server), (END, [wrong]))
    async with asyncio.timeout(LIMIT):
        while open_descriptors() > before:
            await asyncio.sleep(0.01)
    os.close(wrong)


async def test_an_address_outside_is_refused(
    server: socket.socket, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, program = connected(server)
    monkeypatch.setattr(socket.socket, "getpeername", lambda self: ("192.0.2.1", port_of(server)))
    with given, program, pytest.raises(NotHanded):
        await offered(port_of(server), (END, [given.fileno()]))


@pytest.mark.parametrize(
    "messages",
    [
        lambda fd: [(END, [fd, fd])],
        lambda fd: [(END, [fd] * 250)],
        lambda fd: [(END[:5], [fd]), (END[5:], [fd])],
        lambda fd: [(END[:1], [fd] * 250)] * 3,
        lambda fd: [(END, [])],
        lambda fd: [(wire.message(1, wire.FAIL, error="io", message="no"), [fd])],
        lambda fd: [(wire.message(1, wire.EVENT, connected=True), [fd])],
        lambda fd: [(wire.message(3, wire.END), [fd])],
        lambda fd: [(wire.frame(1, wire.END, b"[]"), [fd])],
        lambda fd: [(wire.frame(1, wire.END, b'{"a":' * 3000), [fd])],
        lambda fd: [(struct.pack(">IIBBH", 2**32 - 1, 1, wire.END, 0, 0), [fd])],
        lambda fd: [(struct.pack(">IIBBH", wire.MAX_PAYLOAD, 1, wire.END, 0, 0) + bytes(1000), [fd])] * 100,
        lambda fd: [(b"\0", [fd])],
        lambda fd: [],
    ],
    ids=[
        *("two", "many", "two in turn", "many in turn", "none", "a failure", "an event", "another channel", "a list"),
        *("nested", "endless", "long", "half", "silence"),
    ],
)
async def test_an_answer_that_breaks_the_rules_leaves_nothing(
    messages: Callable[[int], list[tuple[bytes, list[int]]]], server: socket.socket, nothing_left: None
) -> None:
    given, program = connected(server)
    with given, program, pytest.raises(NotHanded):
        await offered(port_of(server), *messages(given.fileno()))


async def test_a_refused_port_is_told_apart(nothing_left: None) -> None:
    with pytest.raises(MachineError) as no:
        await offered(1, (wire.message(1, wire.FAIL, error="refused", message="Connection refused"), []))
    assert no.value.code == "refused"


async def test_random_answers_leave_nothing(server: socket.socket, nothing_left: None) -> None:
    dice = random.Random(int(os.environ.get("CUBICLE_SEED", "1")))
    given, program = connected(server)
    with given, program:
        for _ in range(int(os.environ.get("CUBICLE_FUZZ", "60"))):
            messages = []
            for _ in range(dice.randrange(1, 4)):
                data = bytearray(dice.choice([END, wire.message(1, wire.FAIL, error="x"), dice.randbytes(40)]))
                for _ in range(dice.randrange(3)):
                    data[dice.randrange(len(data))] = dice.randrange(256)
                messages.append((bytes(data), [given.fileno()] * dice.choice([0, 1, 1, 2, 100])))
            with contextlib.suppress(NotHanded, MachineError):
                (await offered(port_of(server), *messages)).close()


async def machine_with(reach: Callable[[], socket.socket]) -> tuple[Machine, socket.socket]:
    """A machine whose guest says that it hands sockets over, and that guest's end of the line."""
    ours, guest = socket.socketpair()
    for end in (ours, guest):
        end.setblocking(False)

    async def connect() -> socket.socket:
        sock = reach()
        sock.setblocking(False)
        return sock

    machine = Machine("m", await Line.over(ours), None, connect)
    loop = asyncio.get_running_loop()
    asking = asyncio.ensure_future(machine.hello())
    await loop.sock_recv(guest, 65536)
    await loop.sock_sendall(guest, wire.message(1, wire.END, version=wire.VERSION, hands=True))
    await asking
    return machine, guest


async def test_a_guest_that_lied_once_is_not_asked_again(nothing_left: None) -> None:
    asked = 0

    def reach() -> socket.socket:
        nonlocal asked
        asked += 1
        ours, guest = socket.socketpair()
        guest.close()
        return ours

    machine, guest = await machine_with(reach)
    with guest:
        for number in (3, 5):
            dialling = asyncio.ensure_future(machine.dial(80, straight=True))
            await asyncio.get_running_loop().sock_recv(guest, 65536)
            await asyncio.get_running_loop().sock_sendall(guest, wire.message(number, wire.EVENT, connected=True))
            assert isinstance(await dialling, Stream)
        assert asked == 1
        machine.close()


async def test_a_guest_that_says_nothing_does_not_hold_the_caller(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.sandbox.machine._DIAL_SECONDS", 0.2)
    ours, silent = socket.socketpair()
    machine, guest = await machine_with(lambda: ours)
    with guest, silent, pytest.raises(MachineError):
        await machine.dial(80, straight=True)
    machine.close()


# ---- the stream


class Handed:
    """A stream over a socket of which a hostile guest kept a copy; its line answers whatever it is asked."""

    def __init__(self, server: socket.socket, line: Line, guest: socket.socket) -> None:
        self.copy, self.program = connected(server)
        self.stream = HandedStream(handed.checked(os.dup(self.copy.fileno()), port_of(server)), line)
        self.guest = guest
        asyncio.get_running_loop().add_reader(guest, self._answer)

    def _answer(self) -> None:
        heard = self.guest.recv(65536)
        while heard:
            length, number, kind, _ = wire.read_header(heard)
            heard = heard[wire.HEADER.size + length :]
            if kind == wire.OPEN:
                self.guest.send(wire.message(number, wire.END))

    def kill(self) -> None:
        """The whole sandbox is over."""
        asyncio.get_running_loop().remove_reader(self.guest)
        self.guest.close()


@pytest.fixture
async def pair(server: socket.socket, nothing_left: None) -> AsyncIterator[Handed]:
    ours, guest = socket.socketpair()
    for end in (ours, guest):
        end.setblocking(False)
    line = await Line.over(ours)
    pair = Handed(server, line, guest)
    yield pair
    pair.stream.close()
    pair.copy.close()
    pair.program.close()
    if guest.fileno() != -1:
        pair.kill()
    line.close()


async def test_a_copy_that_is_made_to_block_blocks_nobody(pair: Handed) -> None:
    pair.copy.setblocking(True)
    assert os.get_blocking(pair.copy.fileno())
    pair.stream._on_readable()  # a copy's reader was faster
    sent = 0
    while pair.stream.put(bytes(1024 * 1024)):
        sent += 1
        assert sent < 100
    reading = asyncio.ensure_future(pair.stream.read())
    pair.copy.setblocking(True)
    pair.program.sendall(b"late")
    async with asyncio.timeout(LIMIT):
        assert await reading == b"late"


async def test_what_finds_no_room_arrives_later(pair: Handed) -> None:
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


async def test_a_reader_that_does_not_read_stops_the_writer(pair: Handed) -> None:
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


@pytest.mark.parametrize("pumped", [False, True])
async def test_the_end_comes_after_all_that_was_sent(pair: Handed, pumped: bool) -> None:
    pair.program.sendall(b"a" * 1000)
    pair.program.close()
    pair.copy.close()
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


async def test_a_broken_connection_raises(pair: Handed) -> None:
    pair.program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.program.close()
    with pytest.raises(MachineError):
        async with asyncio.timeout(LIMIT):
            await pair.stream.read()


async def test_an_error_queue_of_the_guests_cannot_keep_the_loop_busy(pair: Handed) -> None:
    """Timestamps of what was sent lie in a queue that nobody reads, and wake whoever waits, again and again."""
    pair.copy.setsockopt(socket.SOL_SOCKET, 37, 0x2 | 0x10 | 0x800)
    pair.copy.send(b"x")
    with pytest.raises(MachineError):
        async with asyncio.timeout(LIMIT):
            await pair.stream.read()


async def test_the_end_of_the_sandbox_ends_it(pair: Handed) -> None:
    reading = asyncio.ensure_future(pair.stream.read())
    pair.kill()
    with pytest.raises(Gone):
        async with asyncio.timeout(LIMIT):
            await reading
    with pytest.raises(Gone):
        pair.stream.put(b"x")


@pytest.mark.parametrize("end", ["closed", "reset"])
async def test_a_program_that_ended_with_its_sandbox_is_not_taken_for_the_cause(pair: Handed, end: str) -> None:
    """The program's end may be heard before the line's."""
    if end == "reset":
        pair.program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.program.close()
    pair.copy.close()
    async with asyncio.timeout(LIMIT):
        while pair.stream._over is None:
            await asyncio.sleep(0)
        assert not isinstance(pair.stream._over, Gone)
        pair.kill()
        with pytest.raises(Gone):
            await pair.stream.read()


async def test_closing_waits_for_nobody(pair: Handed, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a setting of the guest's on it, the kernel can take any time to close."""
    closing, may = threading.Event(), threading.Event()
    close = os.close

    def slow(descriptor: int) -> None:
        closing.set()
        may.wait(LIMIT)
        close(descriptor)

    monkeypatch.setattr("cubicle.sandbox.handover.os.close", slow)
    pair.stream.close()
    assert await asyncio.to_thread(closing.wait, LIMIT)
    monkeypatch.undo()
    may.set()
