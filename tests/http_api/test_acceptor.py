"""New connections: whoever opens many keeps nobody else out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from cubicle.fairness.fair_queue import FairQueue
from cubicle.http_api import acceptor as acceptor_module
from cubicle.http_api.acceptor import MAX_WAITING_OF_ADDRESS, Acceptor

pytestmark = pytest.mark.anyio

FLOOD, OTHER = "127.0.0.2", "127.0.0.1"


class Seen(asyncio.Protocol):
    """Writes down where connections come from, in the order in which they begin."""

    def __init__(self, order: list[str]) -> None:
        self._order = order
        ends = time.thread_time() + 0.001  # what a turn of the event loop has
        while time.thread_time() < ends:
            pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._order.append(transport.get_extra_info("peername")[0])
        transport.close()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as made:
        yield made


def connected(listening: socket.socket, address: str, count: int) -> list[socket.socket]:
    """Clients that the kernel has connected, and nobody has accepted."""
    return [socket.create_connection(listening.getsockname(), source_address=(address, 0)) for _ in range(count)]


@contextlib.contextmanager
def accepting(listening: socket.socket) -> Iterator[list[str]]:
    order: list[str] = []
    made = Acceptor(listening, lambda: Seen(order), FairQueue())
    try:
        yield order
    finally:
        made.close()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.001)


async def test_another_address_does_not_wait_for_all_of_a_flood(listening: socket.socket) -> None:
    clients = connected(listening, FLOOD, 400) + connected(listening, OTHER, 1)
    with accepting(listening) as order:
        await until(lambda: len(order) == len(clients))
    assert order.index(OTHER) < 100
    for client in clients:
        client.close()


async def test_an_address_has_a_limit_and_others_are_served(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "MAX_WAITING_OF_ADDRESS", 16)
    clients = connected(listening, FLOOD, 300)
    late = connected(listening, OTHER, 3)
    with accepting(listening) as order:
        await until(lambda: order.count(OTHER) == len(late))
    assert 16 <= order.count(FLOOD) < 300
    for client in clients:  # each was served or closed: none is left waiting
        client.setblocking(False)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        client.close()
    for client in late:
        client.close()


async def test_when_all_places_are_taken_whoever_has_the_most_makes_room(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "MAX_WAITING", 16)
    clients = connected(listening, FLOOD, 60)
    clients += [each for number in range(3, 9) for each in connected(listening, f"127.0.0.{number}", 1)]
    with accepting(listening) as order:
        await until(lambda: len({*order} - {FLOOD}) == 6)
    for client in clients:
        client.close()


async def test_what_begins_as_the_service_ends_is_told_to_end(listening: socket.socket) -> None:
    ended: list[str] = []

    class Polite(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def shutdown(self) -> None:
            ended.append("told")
            self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            ended.append("lost")

    clients = connected(listening, OTHER, 2)
    made = Acceptor(listening, Polite, FairQueue())
    made._accept_some()  # their tasks are there, and have not run
    made.close()
    await until(lambda: ended.count("lost") == len(clients))
    assert ended.count("told") == len(clients)
    for client in clients:
        client.close()


async def test_without_a_free_descriptor_it_waits_and_goes_on(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(errno.EMFILE, "too many open files"), OSError(errno.ECONNABORTED, "gone")]

    class Short:
        """A socket that fails first."""

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if refusals:
                raise refusals.pop(0)
            return listening.accept()

        def fileno(self) -> int:
            return listening.fileno()

        def setblocking(self, flag: bool) -> None:
            listening.setblocking(flag)

    (client,) = connected(listening, OTHER, 1)
    with accepting(Short()) as order:  # type: ignore[arg-type]
        await until(lambda: len(order) == 1)
    assert order == [OTHER]
    client.close()


def test_the_limit_of_an_address_is_less_than_that_of_all() -> None:
    assert acceptor_module.MAX_WAITING > MAX_WAITING_OF_ADDRESS
