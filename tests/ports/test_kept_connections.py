"""Connections to programs that are kept for the next request: few for each sandbox, and none when they are old."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cubicle.ports import program as rules
from cubicle.ports.program import ProgramConnection, ProgramConnections
from tests.ports.conftest import CHAT, Ground, ground_on
from tests.sandbox.offering import until
from tests.support.process import free_port

pytestmark = pytest.mark.anyio
ground = ground_on("oci", "docker-runc")


class Stream:
    """Of a program that says nothing."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Kept(ProgramConnection):
    is_quiet = True  # type: ignore[assignment]

    def renew(self) -> bool:
        return True


class Sandbox:
    async def dial(self, _port: int, **_options: Any) -> Stream:
        return Stream()


async def test_a_sandbox_with_many_ports_keeps_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_IDLE_SECONDS", 3600)
    connections, machine = ProgramConnections(), Sandbox()
    streams = [Stream() for _ in range(200)]
    for port, stream in enumerate(streams, 1):
        connections.give_back(machine, Kept(stream, port))  # type: ignore[arg-type]
    assert [stream.closed for stream in streams] == [True] * 136 + [False] * 64
    again = await connections.take(machine, 200)  # type: ignore[arg-type]
    assert again.port == 200
    assert not streams[-1].closed
    fresh = await connections.take(machine, 199, fresh=True)  # type: ignore[arg-type]
    assert not isinstance(fresh, Kept)
    gone = await connections.take(machine, 1)  # type: ignore[arg-type]
    assert not isinstance(gone, Kept)
    for port in range(137, 200):
        (await connections.take(machine, port)).close()  # type: ignore[arg-type]
    assert not connections._idle


async def test_an_old_connection_is_closed_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_IDLE_SECONDS", 0.01)
    connections, machine, stream = ProgramConnections(), Sandbox(), Stream()
    connections.give_back(machine, Kept(stream, 80))  # type: ignore[arg-type]
    await until(lambda: stream.closed)
    assert not connections._idle


async def test_a_connection_that_nobody_needs_any_more_ends_in_order(ground: Ground) -> None:
    """A program that logs broken connections logs none."""
    program = b"""
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    sock = listener.accept()[0]
    try:
        while head := sock.recv(65536):
            while b"\\r\\n\\r\\n" not in head:
                head += sock.recv(65536)
            while head.startswith(b"POST") and not head.endswith(b"form"):
                head += sock.recv(65536)
            sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
        print("ended", flush=True)
    except OSError as error:
        print("broke", error, flush=True)
    sock.close()
"""
    port = free_port()
    await ground.put(CHAT, "ends.py", program)
    up = f"until : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    await ground.bash(CHAT, f"python3 ends.py {port} >ends.log 2>&1 & {up}")
    async with ground.client(CHAT, port) as client:
        assert (await client.get("/")).text == "ok"
        assert (await client.post("/", content=b"form")).text == "ok"
    async with asyncio.timeout(30):
        while (log := await ground.bash(CHAT, "cat ends.log")).count("\n") < 3:
            await asyncio.sleep(0.2)
    assert "broke" not in log


async def test_what_must_not_be_sent_twice_has_a_new_connection(ground: Ground, program: int) -> None:
    async with ground.client(CHAT, program) as client:
        kept = {(await client.get("/")).json()["peer"] for _ in range(3)}
        for method in ("POST", "DELETE", "PATCH"):
            assert (await client.request(method, "/")).json()["peer"] not in kept
