"""A file out of a sandbox: what is none is refused and closed, and what is one holds nobody up and is let go."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cubicle.guest import operations, wire
from cubicle.machine import passed_file
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.fd_passing import NotPassed
from cubicle.machine.machine import Machine
from cubicle.machine.passed_file import FileThreads, PassedFile
from cubicle.machine.zero_copy import BrokeOff
from tests.conftest import IN_A_HURRY
from tests.sandbox.offering import LIMIT, machine_with, offering, open_descriptors, until
from tests.support.frames import message

END = message(1, wire.END, path="/told")
MB = 1024**2
CONTENT = bytes(range(256)) * 4096 * 20 + b"the end"


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """All descriptors are closed in the end: closing goes on in a thread."""
    before = open_descriptors()
    yield
    await until(lambda: open_descriptors() <= before)


class Sandbox:
    """A line, and the guest's end of it."""

    def __init__(self, line: GuestLink, guest: socket.socket, path: Path) -> None:
        self.line = line
        self.threads = FileThreads()
        self.guest = guest
        self.path = path

    async def offered(
        self, *messages: tuple[bytes, list[int]], offset: int = 0, length: int | None = None
    ) -> PassedFile:
        """What `receive` makes of a guest that answers so."""
        async with offering(messages) as link:
            return await passed_file.receive(
                link, self.line, self.threads, operations.Read(path="/asked", offset=offset, length=length)
            )

    async def handed(self, offset: int = 0, length: int | None = None) -> tuple[PassedFile, int]:
        """(the file, the copy that a hostile guest keeps)"""
        copy = os.open(self.path, os.O_RDONLY)
        return await self.offered((END, [copy]), offset=offset, length=length), copy


@pytest.fixture
async def sandbox(nothing_left: None, tmp_path: Path) -> AsyncIterator[Sandbox]:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    ours, guest = socket.socketpair()
    for end in (ours, guest):
        end.setblocking(False)
    line = await GuestLink.over(ours)
    yield Sandbox(line, guest, path)
    line.close()
    guest.close()


async def read(file: PassedFile) -> bytes:
    async with asyncio.timeout(LIMIT):
        return b"".join([chunk async for chunk in file])


# ---- what comes


async def test_an_open_file_is_taken_and_described_by_the_kernel(sandbox: Sandbox) -> None:
    file, copy = await sandbox.handed()
    found = os.fstat(copy)
    assert (file.stat.path, file.stat.kind, file.stat.size) == ("/told", "file", len(CONTENT))
    assert (file.stat.inode, file.stat.mtime, file.length) == (found.st_ino, found.st_mtime, len(CONTENT))
    assert not os.get_inheritable(file._descriptor)
    assert await read(file) == CONTENT
    file.close()
    os.close(copy)


async def test_what_the_guest_tells_of_the_file_is_not_believed(sandbox: Sandbox) -> None:
    lie = message(1, wire.END, path=[], stat={"size": 10**12, "inode": 1, "mtime": 0}, length=10**12)
    copy = os.open(sandbox.path, os.O_RDONLY)
    file = await sandbox.offered((lie, [copy]))
    assert (file.stat.size, file.length) == (len(CONTENT), len(CONTENT))
    file.close()
    os.close(copy)


@pytest.mark.parametrize(
    ("offset", "length", "wanted"),
    [
        (0, 5, CONTENT[:5]),
        (3, MB, CONTENT[3 : MB + 3]),
        (len(CONTENT) - 3, None, b"end"),
        (len(CONTENT) - 3, 10, b"end"),
        (len(CONTENT) + 5, None, b""),
    ],
)
async def test_a_part_is_read_by_its_place(sandbox: Sandbox, offset: int, length: int | None, wanted: bytes) -> None:
    file, copy = await sandbox.handed(offset, length)
    assert file.length == len(wanted)
    assert await read(file) == wanted
    file.close()
    os.close(copy)


def _fifo(folder: Path) -> int:
    os.mkfifo(folder / "fifo")
    return os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)


def _pipe(folder: Path) -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


WRONG: dict[str, Callable[[Path], int]] = {
    "a folder": lambda folder: os.open(folder, os.O_RDONLY),
    "a path": lambda folder: os.open(folder / "file", os.O_PATH),
    "a file to write": lambda folder: os.open(folder / "file", os.O_WRONLY),
    "a file to read and write": lambda folder: os.open(folder / "file", os.O_RDWR),
    "a file to append to": lambda folder: os.open(folder / "file", os.O_RDWR | os.O_APPEND),
    "a device": lambda folder: os.open("/dev/zero", os.O_RDONLY),
    "a terminal": lambda folder: os.open("/dev/ptmx", os.O_RDONLY | os.O_NOCTTY),
    "a FIFO": _fifo,
    "a pipe": _pipe,
    "a socket": lambda folder: socket.socket().detach(),
    "a process": lambda folder: os.pidfd_open(os.getpid()),
    "a memory file to write": lambda folder: os.memfd_create("m"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", WRONG)
async def test_what_is_no_file_to_read_is_refused(name: str, tmp_path: Path, sandbox: Sandbox) -> None:
    wrong = WRONG[name](tmp_path)
    before = open_descriptors()
    with pytest.raises(NotPassed):
        await sandbox.offered((END, [wrong]))
    await until(lambda: open_descriptors() <= before)
    os.close(wrong)


async def test_nothing_is_read_of_a_file_that_has_no_size(sandbox: Sandbox) -> None:
    """As those of /proc, some of which would wait for something to tell."""
    copy = os.open("/proc/self/status", os.O_RDONLY)
    file = await sandbox.offered((END, [copy]))
    assert file.length == 0
    assert await read(file) == b""
    file.close()
    os.close(copy)


@pytest.mark.parametrize(
    "messages",
    [
        lambda fd: [(END, [fd, fd])],
        lambda fd: [(END, [fd] * 250)],
        lambda fd: [(END[:5], [fd]), (END[5:], [fd])],
        lambda fd: [(END, [])],
        lambda fd: [(message(1, wire.EVENT, stat={}, length=1), [fd])],
        lambda fd: [(message(3, wire.END), [fd])],
        lambda fd: [(wire.frame(1, wire.END, b"[]"), [fd])],
        lambda fd: [(struct.pack(">IIBBH", wire.MAX_PAYLOAD, 1, wire.END, 0, 0) + bytes(1000), [fd])] * 100,
        lambda fd: [(END[:-1], [fd])],
        lambda fd: [],
    ],
    ids=["two", "many", "two in turn", "none", "an event", "another channel", "a list", "long", "truncated", "silence"],
)
async def test_an_answer_that_breaks_the_rules_leaves_nothing(
    messages: Callable[[int], list[tuple[bytes, list[int]]]], sandbox: Sandbox
) -> None:
    copy = os.open(sandbox.path, os.O_RDONLY)
    with pytest.raises(NotPassed):
        await sandbox.offered(*messages(copy))
    os.close(copy)


async def test_a_refusal_is_told_and_what_came_with_it_closed(sandbox: Sandbox) -> None:
    copy = os.open(sandbox.path, os.O_RDONLY)
    with pytest.raises(MachineError) as no:
        await sandbox.offered((message(1, wire.FAIL, error="not-found", message="none"), [copy]))
    assert no.value.code == "not-found"
    os.close(copy)


async def test_random_answers_leave_nothing(sandbox: Sandbox) -> None:
    dice = random.Random(int(os.environ.get("CUBICLE_SEED", "1")))
    copy = os.open(sandbox.path, os.O_RDONLY)
    for _ in range(int(os.environ.get("CUBICLE_FUZZ", "60"))):
        messages = []
        for _ in range(dice.randrange(1, 4)):
            data = bytearray(dice.choice([END, message(1, wire.FAIL, error="x"), dice.randbytes(40)]))
            for _ in range(dice.randrange(3)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            messages.append((bytes(data), [copy] * dice.choice([0, 1, 1, 2, 100])))
        with contextlib.suppress(NotPassed, MachineError):
            (await sandbox.offered(*messages)).close()
    os.close(copy)


@pytest.mark.parametrize("answer", ["a device", "a refusal", "silence"])
async def test_what_is_not_handed_over_comes_the_ordinary_way(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """One that broke the rules is not asked again; one that said no, or was slow, is."""
    monkeypatch.setattr("cubicle.machine.machine._DIAL_SECONDS", 0.2 if answer == "silence" else LIMIT)
    ends: list[socket.socket] = []

    def reach() -> socket.socket:
        ours, guest = socket.socketpair()
        guest.setblocking(False)
        ends.append(guest)
        with open("/dev/zero", "rb") as device:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [device.fileno()]))]
            if answer == "a device":
                guest.sendmsg([END], rights)
            elif answer == "a refusal":
                guest.send(message(1, wire.FAIL, error="io", message="no"))
        return ours

    machine, guest = await machine_with(reach)
    loop = asyncio.get_running_loop()
    with guest:
        for number in (3, 5):
            reading = asyncio.ensure_future(whole(machine))
            async with asyncio.timeout(LIMIT):
                await loop.sock_recv(guest, 65536)
                stat = {"path": "/f", "kind": "file", "size": 3, "mtime": 0, "mode": 0, "inode": 1, "blocks": 0}
                await loop.sock_sendall(guest, message(number, wire.EVENT, stat=stat, length=3))
                await loop.sock_sendall(guest, wire.frame(number, wire.DATA, b"abc"))
                await loop.sock_sendall(guest, message(number, wire.END, size=3))
                assert await reading == b"abc"
        assert len(ends) == (1 if answer == "a device" else 2)
        machine.close()
    for end in ends:
        end.close()


async def whole(machine: Machine) -> bytes:
    async with machine.read("/f", straight=True) as reader:
        return b"".join([chunk async for chunk in reader])


# ---- how it is read


async def test_a_copy_that_is_moved_moves_nothing(sandbox: Sandbox) -> None:
    file, copy = await sandbox.handed()
    heard = b""
    async for chunk in file:
        heard += chunk
        os.lseek(copy, 12345, os.SEEK_SET)
    assert heard == CONTENT
    file.close()
    os.close(copy)


async def test_a_file_that_is_cut_short_ends_there(sandbox: Sandbox) -> None:
    file, copy = await sandbox.handed()
    chunks = aiter(file)
    first = await anext(chunks)
    os.truncate(sandbox.path, len(first) + 10)
    assert [len(chunk) async for chunk in chunks] == [10]
    file.close()
    os.close(copy)


async def test_a_file_that_grows_gives_what_was_promised(sandbox: Sandbox) -> None:
    file, copy = await sandbox.handed()
    with sandbox.path.open("ab") as more:
        more.write(b"more")
    assert await read(file) == CONTENT
    file.close()
    os.close(copy)


async def test_the_end_of_the_sandbox_closes_it(sandbox: Sandbox) -> None:
    file, copy = await sandbox.handed()
    chunks = aiter(file)
    await anext(chunks)
    os.close(copy)
    sandbox.guest.close()
    await until(lambda: str(sandbox.path) not in links())
    with pytest.raises(Gone):
        await anext(chunks)
    file.close()  # once more is no harm: the number may be another's by now


def links() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


class Slow:
    """A disk that does not answer until it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.began, self.may = threading.Event(), threading.Event()
        self._work = getattr(os, name)
        monkeypatch.setattr(f"cubicle.machine.passed_file.os.{name}", self)

    def __call__(self, *arguments: int) -> object:
        self.began.set()
        assert self.may.wait(LIMIT)
        return self._work(*arguments)


async def test_a_read_that_is_cancelled_is_closed_by_the_thread_that_reads(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch, "pread")
    file, copy = await sandbox.handed()
    os.close(copy)
    reading = asyncio.ensure_future(read(file))
    assert await asyncio.to_thread(slow.began.wait, LIMIT)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    file.close()
    assert str(sandbox.path) in links()  # the number must not be another file's while the thread uses it
    slow.may.set()
    await until(lambda: str(sandbox.path) not in links())


@pytest.mark.parametrize("count", [1, 3], ids=["the only one", "more than are looked at"])
async def test_a_file_whose_asker_leaves_while_it_is_looked_at_is_closed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    slow = Slow(monkeypatch, "fstat")
    copy = os.open(sandbox.path, os.O_RDONLY)
    asking = [asyncio.ensure_future(sandbox.offered((END, [copy]))) for _ in range(count)]
    await until(lambda: slow.began.is_set() and links().count(str(sandbox.path)) == 1 + count)
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    os.close(copy)
    slow.may.set()
    await until(lambda: str(sandbox.path) not in links())


@pytest.mark.parametrize("way", ["pread", "sendfile"])
async def test_a_disk_that_does_not_answer_holds_nobody(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    slow = Slow(monkeypatch, way)
    monkeypatch.setattr("cubicle.machine.passed_file._SECONDS", 0.2)
    file, copy = await sandbox.handed()
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(MachineError):
        await (read(file) if way == "pread" else file.into(ours.fileno()))
    file.close()
    os.close(copy)
    slow.may.set()


async def test_a_thousand_reads_leave_nothing(sandbox: Sandbox) -> None:
    before = open_descriptors()
    for number in range(250 if IN_A_HURRY else 1000):
        file, copy = await sandbox.handed(0, MB)
        os.close(copy)
        if number % 3:
            await anext(aiter(file))
        file.close()
        await until(lambda: open_descriptors() < before + 100)  # closing goes on in a thread


# ---- how it is sent


@pytest.fixture
def client() -> tuple[socket.socket, socket.socket]:
    """(the service's end, the client's): TCP, as clients have it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours = server.accept()[0]
    ours.setblocking(False)
    return ours, theirs


def drain(sock: socket.socket) -> bytes:
    sock.settimeout(LIMIT)
    heard = bytearray()
    while chunk := sock.recv(MB):
        heard += chunk
    return bytes(heard)


async def test_all_of_it_comes_to_a_client(sandbox: Sandbox, client: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = client
    file, copy = await sandbox.handed(7)
    with theirs:
        with ours:
            draining = asyncio.ensure_future(asyncio.to_thread(drain, theirs))
            async with asyncio.timeout(LIMIT):
                assert await file.into(ours.fileno()) == len(CONTENT) - 7
            os.lseek(copy, 0, os.SEEK_SET)
        assert await draining == CONTENT[7:]
    file.close()
    os.close(copy)


async def test_of_a_file_that_is_cut_short_comes_what_there_is(
    sandbox: Sandbox, client: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = client
    file, copy = await sandbox.handed()
    os.truncate(sandbox.path, 1000)
    with ours, theirs:
        assert await file.into(ours.fileno()) == 1000
    file.close()
    os.close(copy)


async def test_clients_that_do_not_read_hold_no_thread(sandbox: Sandbox) -> None:
    """More of them than there are threads."""
    waiting = []
    for _ in range(10):
        file, copy = await sandbox.handed()
        os.close(copy)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        waiting.append((file, ours, theirs, asyncio.ensure_future(file.into(ours.fileno()))))
    file, copy = await sandbox.handed()
    os.close(copy)
    assert await read(file) == CONTENT
    file.close()
    for stalled, ours, theirs, sending in waiting:
        assert not sending.done()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        stalled.close()
        ours.close()
        theirs.close()


async def test_a_client_that_goes_away_is_told_apart(
    sandbox: Sandbox, client: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = client
    file, copy = await sandbox.handed()
    os.close(copy)
    with ours:
        sending = asyncio.ensure_future(file.into(ours.fileno()))
        assert await asyncio.to_thread(theirs.recv, 1000)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        with pytest.raises(BrokeOff):
            async with asyncio.timeout(LIMIT):
                await sending
    file.close()


async def test_the_end_of_the_sandbox_closes_what_a_client_does_not_take(
    sandbox: Sandbox, client: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = client
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    file, copy = await sandbox.handed()
    os.close(copy)
    with ours, theirs:
        sending = asyncio.ensure_future(file.into(ours.fileno()))
        assert await asyncio.to_thread(theirs.recv, 1000)
        sandbox.guest.close()
        await until(lambda: str(sandbox.path) not in links())
        assert not sending.done()
        draining = asyncio.ensure_future(asyncio.to_thread(drain, theirs))
        with pytest.raises(Gone):
            async with asyncio.timeout(LIMIT):
                await sending
        ours.close()
        assert len(await draining) < len(CONTENT)
    file.close()
