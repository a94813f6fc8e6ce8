"""Which ports the guest tells of: its own are never taken for somebody else's."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cubicle.guest import listening
from cubicle.guest.connection import GuestConnection
from cubicle.guest.listening import ListeningPorts
from cubicle.guest.loop import Loop


@pytest.fixture
def own() -> Iterator[socket.socket]:
    """A socket that the guest listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening.own_ports.add(server.getsockname()[1])
        yield server
        listening.own_ports.discard(server.getsockname()[1])


def test_a_port_of_the_guest_is_its_own_whoever_else_listens_on_it(own: socket.socket) -> None:
    port = own.getsockname()[1]
    for family, address in ((socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")):
        with socket.create_server((address, port), family=family):
            found = {seen.port: seen for seen in ListeningPorts(apart=True).read().ports}
            assert found[port].own
            assert found[port].address == "127.0.0.1"


def test_the_guest_s_own_ports_come_first_however_many_there_are(
    own: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_MAX_PORTS", 2)
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    try:
        told = ListeningPorts(apart=True).read().ports
    finally:
        for server in servers:
            server.close()
    assert len(told) == 2
    assert told[0].port == own.getsockname()[1]
    assert [seen.own for seen in told] == [True, False]


def test_the_mark_changes_when_a_port_is_opened_and_comes_back_when_it_is_closed(own: socket.socket) -> None:
    ports = ListeningPorts(apart=True)
    for _ in range(20):  # other programs of this machine open ports, too
        before = ports.mark()
        with socket.create_server(("127.0.0.1", 0)):
            during = ports.mark()
        if ports.mark() == before:
            break
    assert ports.mark() == before
    assert during != before


@pytest.mark.parametrize("counts", [True, False])
def test_a_server_that_the_kernel_does_not_count_changes_the_mark(
    own: socket.socket, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    """Many kernels count no sockets of MPTCP over IPv6."""
    if not counts:
        monkeypatch.setattr(listening, "_count_sockets", lambda: len(listening.own_ports))
    ports = ListeningPorts(apart=True)
    before = ports.mark()
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, listening._MPTCP) as server:
        server.bind(("::1", 0))
        server.listen(1)
        assert ports.mark() != before


HEADINGS = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(port: int, inode: int, state: str = "0A") -> str:
    """As the kernel writes it."""
    ends = f"0100007F:{port:04X} 00000000:0000 {state}"
    return (
        f"   0: {ends} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100 0 0 10 0".ljust(149) + "\n"
    )


def test_a_port_is_found_behind_any_number_of_connections(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    busy = "".join(line(80, number, "01") for number in range(1, 60_000))
    table.write_text(HEADINGS + busy + line(8000, 77) + line(8001, 123456)[:-70])
    began = time.process_time()
    assert listening._listening(str(table), socket.AF_INET) == [("127.0.0.1", 8000, 77)]
    assert time.process_time() - began < 2


def test_a_table_of_the_kernel_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tcp"
    table.write_text(HEADINGS + "".join(line(port, port) for port in range(1, 6000)))
    assert len(listening._listening(str(table), socket.AF_INET)) == 4096
    monkeypatch.setattr(listening, "_MAX_LINES", 100)
    assert len(listening._listening(str(table), socket.AF_INET)) == 99
    table.write_text("x" * 5_000_000)
    assert listening._listening(str(table), socket.AF_INET) == []


def test_the_table_of_connections_is_not_read_while_only_the_guest_listens(
    own: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose length is that of the host's whole table: half a million places on a large one."""
    ports, counts = ListeningPorts(apart=True), tmp_path / "sockstat"
    with_connections = [
        ListeningPorts(apart=True, connections=lambda: 1),
        ListeningPorts(apart=True, connections=lambda: 2),
    ]
    (tmp_path / "tcp").write_text(HEADINGS + line(8000, 77))
    tables = ((str(tmp_path / "tcp"), socket.AF_INET), (str(tmp_path / "none"), socket.AF_INET6))
    monkeypatch.setattr(listening, "_TABLES", tables)
    none = str(tmp_path / "none")
    monkeypatch.setattr(listening, "_COUNTS", ((str(counts), b"TCP: inuse ", ""), (none, b"TCP6: inuse ", none)))
    counts.write_text("sockets: used 9\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 0\n")
    quiet = ports.mark()
    counts.write_text("sockets: used 9\nTCP: inuse 2 orphan 0 tw 0 alloc 1 mem 0\n")
    assert ports.mark() != quiet
    assert [each.mark() == quiet for each in with_connections] == [True, False], "those of the service are its own"
    (tmp_path / "tcp").write_text(HEADINGS)
    assert ports.mark() == quiet


def test_a_connection_counts_until_either_end_is_gone(tmp_path: Path) -> None:
    """As in the kernel's own count: what the other end has reset is in it no more, though the guest may not know yet."""
    loop = Loop()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as host:
        link = GuestConnection(loop, server.accept()[0], lambda name: None, lambda link: None)
        assert link.counted
        host.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        host.close()
        deadline = time.monotonic() + 20
        while link.counted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not link.counted
        assert link.open
        link.close()
    ours, theirs = socket.socketpair()
    with theirs:
        link = GuestConnection(loop, ours, lambda name: None, lambda link: None)
        assert not link.counted
        link.close()


@pytest.mark.parametrize("counts", ["", "TCP:", "TCP: inuse ", "TCP: inuse x", "UDP: inuse 1"])
def test_without_a_count_of_sockets_the_table_is_read(
    counts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        listening, "_COUNTS", ((str(tmp_path / "sockstat"), b"TCP: inuse ", ""), *listening._COUNTS[1:])
    )
    if counts:
        (tmp_path / "sockstat").write_text(counts)
    assert listening._count_sockets() is None


def test_the_kernel_counts_a_socket_from_when_it_listens_until_it_is_closed() -> None:
    for _ in range(20):  # other programs of this machine open sockets, too
        before = listening._count_sockets()
        assert before is not None
        with socket.create_server(("127.0.0.1", 0)), socket.create_server(("::1", 0), family=socket.AF_INET6):
            during = listening._count_sockets()
        if listening._count_sockets() == before:
            break
    assert before is not None
    assert during == before + 2
