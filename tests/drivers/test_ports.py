"""Ports of a sandbox's own loopback, on every driver."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import pytest

from cubicle.machine.dialled_socket import DialledSocket
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream
from tests.conftest import IN_A_HURRY
from tests.support.process import free_port

ways = pytest.mark.parametrize("straight", [False, True], ids=["relayed", "straight"])

ECHO = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def serve(one):
    while chunk := one.recv(65536):
        one.sendall(chunk)
    one.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""

RESETTING = ECHO.replace(
    "    one.close()", "    one.setsockopt(1, 13, bytes((1, 0, 0, 0, 0, 0, 0, 0)))\n    one.close()"
)
"""Leaves no port of a caller's waiting for a minute, which on the memory driver is the host's."""

ENDS = """
import sys
mine = "%04X" % int(sys.argv[1])
rows = [line.split() for line in open("/proc/net/tcp")][1:]
assert any(row[1].endswith(":" + mine) and row[3] == "0A" for row in rows), "nobody listens"
print(sum(row[1].endswith(":" + mine) and row[3] in ("01", "08") for row in rows))
"""
"""How many callers of a port are still there."""


MANY = """
import resource, signal, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (1100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(1000)]
print(max(server.getsockname()[1] for server in servers), flush=True)
signal.pause()
"""


async def test_the_guest_s_own_ports_are_known_among_a_thousand_of_a_program(machine: Machine) -> None:
    async def nothing(stream: Stream) -> None:
        stream.close()

    async with AsyncExitStack() as stack:
        own = {await stack.enter_async_context(machine.listen(0, nothing)) for _ in range(8)}
        program = await stack.enter_async_context(machine.run(["python3", "-c", MANY]))
        assert int((await anext(program.output))[1])
        async with asyncio.timeout(60):
            # The kernel leaves some out when sockets come and go meanwhile, those of other namespaces as well.
            while len(seen := await machine.ports()) < 256:
                assert {one.port for one in seen if one.own} == own
        assert {one.port for one in seen if one.own} == own
        assert len(seen) == 256
        assert not own & {one.port for one in seen if not one.own}
    async with asyncio.timeout(20):
        while any(one.own for one in await machine.ports()):
            await asyncio.sleep(0.05)


@ways
async def test_nobody_listening_is_refused(machine: Machine, straight: bool) -> None:
    with pytest.raises(MachineError) as no:
        await machine.dial(1, straight=straight)
    assert no.value.code == "refused"


@ways
async def test_dialled_bytes_pass_both_ways_and_end(machine: Machine, straight: bool) -> None:
    async with machine.run(["python3", "-c", ECHO]) as server:
        port = int((await anext(server.output))[1])
        stream = await machine.dial(port, straight=straight)

        async def send() -> None:
            for _ in range(100):
                await stream.write(b"x" * 100_000)
            stream.write_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            total = 0
            while chunk := await stream.read():
                total += len(chunk)
        assert total == 10_000_000
        stream.close()


@ways
async def test_many_dials_at_once(machine: Machine, straight: bool) -> None:
    async with machine.run(["python3", "-c", ECHO]) as server:
        port = int((await anext(server.output))[1])

        async def talk(word: bytes) -> bytes:
            stream = await machine.dial(port, straight=straight)
            await stream.write(word)
            heard = b""
            while len(heard) < len(word):
                heard += await stream.read()
            stream.close()
            return heard

        words = [f"word {i}".encode() for i in range(50)]
        assert await asyncio.gather(*map(talk, words)) == words


async def test_the_service_dials_by_itself_where_it_can_enter_the_network(machine: Machine) -> None:
    """Not that of gVisor, which is none of the host's kernel, nor of an engine that may be on another machine."""
    namespace = await machine._network() if machine._network is not None else None
    if namespace is not None:
        os.close(namespace)
    async with machine.run(["python3", "-c", ECHO]) as server:
        port = int((await anext(server.output))[1])
        stream = await machine.dial(port, straight=True)
        assert isinstance(stream, DialledSocket) == (namespace is not None)
        stream.close()


@ways
async def test_a_dialled_program_that_is_killed_is_noticed(machine: Machine, straight: bool) -> None:
    async with machine.run(["python3", "-c", ECHO]) as server:
        port = int((await anext(server.output))[1])
        stream = await machine.dial(port, straight=straight)
        await stream.write(b"x")
        assert await stream.read() == b"x"
    async with asyncio.timeout(30):
        assert await stream.read() == b""
    stream.close()


@ways
async def test_a_thousand_dials_leave_nothing_open(machine: Machine, straight: bool) -> None:
    links = (await machine.stats()).links
    before = len(os.listdir("/proc/self/fd"))
    async with machine.run(["python3", "-c", RESETTING]) as server:
        port = int((await anext(server.output))[1])
        for _ in range(10 if IN_A_HURRY else 50):
            for stream in await asyncio.gather(*(machine.dial(port, straight=straight) for _ in range(20))):
                stream.close()
        async with asyncio.timeout(30):
            while len(os.listdir("/proc/self/fd")) > before or (await machine.stats()).links > links:  # type: ignore[operator]
                await asyncio.sleep(0.05)
        # Had the guest kept its ends, the server would still have all of them open.
        async with asyncio.timeout(30):
            while (await machine.output(["python3", "-c", ENDS, str(port)]))[1] != b"0\n":
                await asyncio.sleep(0.05)


async def test_listening_hands_callers_to_the_service(machine: Machine) -> None:
    async def shout(stream: Stream) -> None:
        heard = b""
        while chunk := await stream.read():
            heard += chunk
        await stream.write(heard.upper())
        stream.write_eof()

    script = (
        "import socket,sys; s=socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(b'hello');"
        "s.shutdown(1); print(s.recv(100).decode())"
    )
    async with machine.listen(0, shout) as port:
        _, output = await machine.output(["python3", "-c", script, str(port)], timeout=60)
        assert output == b"HELLO\n"
    exit, _ = await machine.output(["python3", "-c", script, str(port)], timeout=60)
    assert exit.code != 0


async def test_a_port_that_is_taken_for_datagrams_is_refused_whole(machine: Machine) -> None:
    """It is free for the next try as soon as the one who took it is gone."""

    async def nothing(stream: Stream) -> None:
        await stream.read()

    # None of the ports that connections take by themselves: on the memory driver these are the host's, and one of which a
    # connection was just closed is nobody's for a minute.
    port = free_port()
    taken = f"import socket,time; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', {port})); "
    async with machine.run(["python3", "-uc", f"{taken} print(s.getsockname()[1]); time.sleep(600)"]) as process:
        assert int((await anext(process.output))[1]) == port
        with pytest.raises(ExceptionGroup, match="TaskGroup") as no:
            async with machine.listen(port, nothing, datagrams=True):
                pass
        assert no.group_contains(MachineError, match="in use")
    async with asyncio.timeout(30):
        while (await machine.output(["pgrep", "-f", "SOCK_DGRAM"]))[0].code == 0:
            await asyncio.sleep(0.05)
    async with machine.listen(port, nothing, datagrams=True) as again:
        assert again == port


async def test_a_caller_that_goes_away_is_noticed(machine: Machine) -> None:
    over = asyncio.Event()

    async def wait(stream: Stream) -> None:
        while await stream.read():
            pass
        over.set()

    async with machine.listen(0, wait) as port:
        await machine.output(f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo hi >&3", timeout=60)
        async with asyncio.timeout(60):
            await over.wait()
