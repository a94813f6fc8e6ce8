"""Large bodies of requests, which the kernel moves from the visitor's socket to the program's.

The true server, proxy and sockets; in the place of a sandbox is a program on this machine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.fairness.fair_queue import FairQueue
from cubicle.guest.wire import ErrorCode
from cubicle.http_api import request_bodies
from cubicle.http_api.port_access import Admission
from cubicle.http_api.port_headers import Surroundings
from cubicle.http_api.port_hosts import PortFairShare, PortHosts
from cubicle.http_api.port_proxy import PortProxy
from cubicle.machine.dialled_socket import DialledSocket, Unattached
from cubicle.machine.errors import MachineError
from cubicle.machine.passed_file import FileThreads
from cubicle.machine.socket_splice import SocketSplice
from cubicle.ports import program as rules
from cubicle.ports.running_visits import RunningVisits
from tests.sandbox.offering import LIMIT, open_descriptors, until
from tests.support.large_bodies import BODY, MB, answer, head_of, seen_splices
from tests.support.service import serve

pytestmark = pytest.mark.anyio

HOST = f"5000-{'a' * 32}.localhost"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Program = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A program that says whether it got what it expects."""
    line, headers = await head_of(reader)
    body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    writer.write(answer(b"200 OK", line.split()[1] + (b" whole" if body == BODY else b" %d" % len(body))))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _, headers = await head_of(reader)
    left = int(headers[b"content-length"])
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
    while left:
        writer.write(part := await reader.read(min(left, 65536)))
        await writer.drain()
        left -= len(part)


@dataclass
class Ground:
    """A service, and the one program that all ports of its one chat lead to."""

    port: int
    visits: RunningVisits
    spliced: list[SocketSplice]
    taken: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def visitor(self) -> AsyncIterator[Streams]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(LIMIT):
                yield reader, writer
        finally:
            writer.transport.abort()


def head(path: str = "/", length: int = len(BODY), *lines: str, method: str = "PUT") -> bytes:
    framing = [f"Content-Length: {length}"] if length else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {HOST}", *framing, *lines, "", ""]).encode()


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    line, headers = await head_of(reader)
    return int(line.split()[1]), await reader.readexactly(int(headers[b"content-length"]))


class Sandbox:
    """Stands for both the fleet and the one machine in it."""

    def __init__(self, port: int) -> None:
        self._port = port

    @asynccontextmanager
    async def lease(self, _chat: Chat, **_options: Any) -> AsyncIterator[Sandbox]:
        yield self

    async def ports(self) -> list[Any]:
        return []

    async def dial(self, _port: int, **_options: Any) -> DialledSocket:
        import socket

        sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", self._port))
        sock.setblocking(False)
        return DialledSocket(sock, Unattached())


@pytest.fixture(autouse=True)
def spliced(monkeypatch: pytest.MonkeyPatch) -> list[SocketSplice]:
    """What went to a program by the kernel."""
    return seen_splices(monkeypatch)


@pytest.fixture
async def ground_of(
    spliced: list[SocketSplice], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[Program], Any]]:
    """Makes services. In the end no descriptor, thread or pipe is left."""
    monkeypatch.setattr(rules, "_IDLE_SECONDS", 0.01)
    before = open_descriptors()

    @asynccontextmanager
    async def make(program: Program) -> AsyncIterator[Ground]:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await program(reader, writer)
            writer.close()

        async with await asyncio.start_server(run, "127.0.0.1", 0) as server:
            visits, queue = RunningVisits(), FairQueue()
            access = SimpleNamespace(
                admit=lambda visit, view: Admission(Chat("room", "acme"), by_key=True),
                enter=lambda admission, visit: None,
                holds=lambda admission, name: lambda: True,
            )
            sandbox = Sandbox(server.sockets[0].getsockname()[1])
            proxy = PortProxy(sandbox, access, visits, Surroundings())  # type: ignore[arg-type]
            hosts = PortHosts(proxy, PortFairShare(proxy, queue, None), ["localhost"])  # type: ignore[arg-type]
            hosts.state = SimpleNamespace(fair_queue=queue)  # type: ignore[attr-defined]
            async with serve(hosts) as url:
                yield Ground(int(url.rpartition(":")[2]), visits, spliced)

    yield make
    await until(lambda: open_descriptors() <= before)
    assert not [thread for thread in threading.enumerate() if thread.name == "file-read"]
    assert all(splice.is_released for splice in spliced)


Make = Callable[[Program], Any]


async def test_what_comes_behind_the_body_is_the_next_request(ground_of: Make) -> None:
    async with ground_of(take) as ground, ground.visitor() as (reader, writer):
        writer.write(head("/a") + BODY + head("/b") + BODY + head("/c", 0, method="GET"))
        assert [await answered(reader) for _ in "abc"] == [(200, b"/a whole"), (200, b"/b whole"), (200, b"/c 0")]
        assert len(ground.spliced) >= 2
        assert sum(splice.rest for splice in ground.spliced) < 2 * MB
        writer.write(head("/d", 0, method="GET"))  # the socket wakes the service for a small request, too
        assert await answered(reader) == (200, b"/d 0")


async def test_a_visitor_who_asks_first_gets_leave(ground_of: Make) -> None:
    async with ground_of(take) as ground, ground.visitor() as (reader, writer):
        writer.write(head("/", len(BODY), "Expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert await answered(reader) == (200, b"/ whole")
        assert ground.spliced


async def test_a_chunked_body_and_a_small_one_go_through_the_loop(ground_of: Make) -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        got = b""
        while not got.endswith(b"\r\n0\r\n\r\n"):
            got += await reader.read(65536)
        writer.write(answer(b"200 OK", b"all"))

    for program, sent in (
        (chunked, head("/", 0, "Transfer-Encoding: chunked") + b"100000\r\n%s\r\n0\r\n\r\n" % bytes(MB)),
        (take, head("/", MB - 1) + bytes(MB - 1)),
    ):
        async with ground_of(program) as ground, ground.visitor() as (reader, writer):
            writer.write(sent)
            assert (await answered(reader))[0] == 200
            assert not ground.spliced


async def test_each_part_that_is_sent_slowly_reaches_the_program(ground_of: Make) -> None:
    """Also when the visitor waits with the next one until the program has it."""
    seen, sizes = asyncio.Event(), iter((3 * MB, 3 * MB + 10, 7 * MB, 7 * MB + 1, len(BODY)))
    wanted = next(sizes)

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        got = bytearray()
        while len(got) < len(BODY):
            got += await reader.read(65536)
            if len(got) == wanted:
                seen.set()
        writer.write(answer(b"200 OK", b"whole" if got == BODY else b"other"))

    async with ground_of(program) as ground, ground.visitor() as (reader, writer):
        writer.write(head())
        sent = 0
        while sent < len(BODY):
            writer.write(BODY[sent:wanted])
            await seen.wait()
            seen.clear()
            sent, wanted = wanted, next(sizes, 0)
        assert await answered(reader) == (200, b"whole")
        assert ground.spliced


@pytest.mark.parametrize("leaves", ["at once", "in order"])
async def test_a_visitor_who_stops_in_the_middle_and_leaves_is_told_to_the_program(
    ground_of: Make, leaves: str
) -> None:
    ended = asyncio.Event()
    got = bytearray()

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        with suppress(ConnectionError):
            while part := await reader.read(65536):
                got.extend(part)
        ended.set()

    async with ground_of(program) as ground:
        async with ground.visitor() as (reader, writer):
            writer.write(head() + BODY[: 6 * MB])
            await until(lambda: len(got) == 6 * MB)
            if leaves == "in order":
                writer.write_eof()
                assert await reader.read() == b""
        async with asyncio.timeout(LIMIT):
            await ended.wait()
        assert got == BODY[: 6 * MB]
        assert ground.spliced


async def test_a_visitor_who_leaves_while_the_kernel_moves_the_body_is_noticed(ground_of: Make) -> None:
    ended = asyncio.Event()

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        with suppress(ConnectionError):
            while await reader.read(65536):
                pass
        ended.set()

    async with ground_of(program) as ground:
        async with ground.visitor() as (_, writer):
            writer.write(head(length=1 << 40))
            while not ground.spliced:
                writer.write(BODY)
                await writer.drain()
        async with asyncio.timeout(LIMIT):
            await ended.wait()


async def test_a_program_that_never_reads_stops_the_visitor_until_the_visit_is_over(ground_of: Make) -> None:
    never = asyncio.Event()

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await never.wait()

    async with ground_of(program) as ground, ground.visitor() as (reader, writer):
        writer.write(head("/", 1 << 30))
        sent = 0
        with suppress(TimeoutError):
            while sent < 256 * MB:
                writer.write(bytes(MB))
                async with asyncio.timeout(2):
                    await writer.drain()
                sent += MB
        assert ground.spliced
        assert sent < 64 * MB
        assert not [thread for thread in threading.enumerate() if thread.name == "file-read"]
        ground.visits.end_all()
        assert (await answered(reader))[0] == 401
        never.set()


@pytest.mark.parametrize("read", [0, 3 * MB])
@pytest.mark.parametrize("closes", [True, False])
async def test_an_answer_before_the_body_is_read_is_passed_on_and_the_next_request_too(
    ground_of: Make, read: int, closes: bool
) -> None:
    over = asyncio.Event()

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await head_of(reader)
        if line.startswith(b"GET"):
            writer.write(answer(b"200 OK", b"next"))
            return
        await reader.readexactly(read)
        writer.write(answer(b"413 Too Large", b"no"))
        await writer.drain()
        if not closes:
            await over.wait()

    async with ground_of(program) as ground, ground.visitor() as (reader, writer):
        for _ in range(3):
            writer.write(head())
            for start in range(0, len(BODY), MB):
                writer.write(BODY[start : start + MB])
                await asyncio.sleep(0)
            writer.write(head("/next", 0, method="GET"))
            assert await answered(reader) == (413, b"no")
            assert await answered(reader) == (200, b"next")
        over.set()
        assert ground.spliced


async def test_a_program_that_hangs_up_in_the_middle_is_502_and_the_connection_goes_on(ground_of: Make) -> None:
    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await head_of(reader)
        if line.startswith(b"GET"):
            writer.write(answer(b"200 OK", b"next"))
        else:
            await reader.readexactly(3 * MB)

    async with ground_of(program) as ground, ground.visitor() as (reader, writer):
        writer.write(head() + BODY + head("/next", 0, method="GET"))
        assert (await answered(reader))[0] == 502
        assert await answered(reader) == (200, b"next")
        assert ground.spliced


async def test_a_body_that_comes_back_while_it_is_sent(ground_of: Make) -> None:
    async with ground_of(echo) as ground, ground.visitor() as (reader, writer):
        for _ in range(2):
            writer.write(head() + BODY)
            assert await answered(reader) == (200, BODY)
        assert ground.spliced


async def test_visitors_who_stop_in_the_middle_hold_up_nobody(ground_of: Make) -> None:
    async def upload(ground: Ground) -> tuple[int, bytes]:
        async with ground.visitor() as (reader, writer):
            writer.write(head() + BODY)
            return await answered(reader)

    async with ground_of(take) as ground, ground.visitor() as (reader, writer), ground.visitor() as (_, other):
        for stalled in (writer, other):
            stalled.write(head() + BODY[: 6 * MB])
            await stalled.drain()
        found = await asyncio.gather(*(upload(ground) for _ in range(6)))
        assert found == [(200, b"/ whole")] * 6
        writer.write(BODY[6 * MB :])
        assert await answered(reader) == (200, b"/ whole")


async def test_without_descriptors_the_body_goes_through_the_loop(
    ground_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_arguments: Any) -> SocketSplice:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(request_bodies, "SocketSplice", none_left)
    async with ground_of(take) as ground, ground.visitor() as (reader, writer):
        writer.write(head() + BODY + head("/next", 0, method="GET"))
        assert await answered(reader) == (200, b"/ whole")
        assert await answered(reader) == (200, b"/next 0")


async def test_without_a_thread_the_visitor_is_told(ground_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_left(_threads: FileThreads, _job: Any) -> None:
        raise MachineError(ErrorCode.IO, "The host has no thread.")

    monkeypatch.setattr(FileThreads, "run", none_left)
    async with ground_of(take) as ground, ground.visitor() as (reader, writer):
        writer.write(head() + BODY + head("/next", 0, method="GET"))
        assert (await answered(reader))[0] == 503
        assert await answered(reader) == (200, b"/next 0")


async def test_who_is_cancelled_while_a_thread_reads_waits_for_it_and_twice_cuts_the_visitor_off(
    ground_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the thread is done, nobody knows where the body ends: no other may read from the visitor."""
    begun, goes_on, read = threading.Event(), threading.Event(), SocketSplice._read

    def slow_read(splice: SocketSplice) -> int | None:
        begun.set()
        goes_on.wait(LIMIT)
        return read(splice)

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await head_of(reader)
        if line.startswith(b"PUT"):
            await asyncio.to_thread(begun.wait, LIMIT)
        writer.write(answer(b"200 OK", b"early" if line.startswith(b"PUT") else b"next"))

    monkeypatch.setattr(SocketSplice, "_read", slow_read)
    async with ground_of(program) as ground, ground.visitor() as (reader, writer):
        writer.write(head() + BODY + head("/next", 0, method="GET"))
        await asyncio.to_thread(begun.wait, LIMIT)
        assert await answered(reader) == (200, b"early")
        behind = asyncio.ensure_future(answered(reader))
        await asyncio.wait([behind], timeout=0.3)
        assert not behind.done()
        goes_on.set()
        assert await behind == (200, b"next")
    begun.clear()
    goes_on.clear()
    async with ground_of(take) as ground, ground.visitor() as (reader, writer):
        writer.write(head() + BODY)
        await asyncio.to_thread(begun.wait, LIMIT)
        (sending,) = [task for task in asyncio.all_tasks() if "_send_body" in repr(task.get_coro())]
        for _ in range(2):
            sending.cancel()
            await asyncio.sleep(0.01)
        goes_on.set()
        with suppress(ConnectionError):
            assert await reader.read() == b""
