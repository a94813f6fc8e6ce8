"""`cubicle port`: TCP of any kind to a port of a sandbox, through the true service and the true command."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import socket as tcp
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.core.chat import Chat
from tests.ports.conftest import CHAT, KEYS, Ground, ground_on
from tests.support.fork_server import Forked, the_server
from tests.support.process import free_port

ground = ground_on("oci", "oci-runsc")

ECHO = b"""
import queue, socket, sys, threading
def reads(sock, chunks):
    while data := sock.recv(65536):
        chunks.put(data)
    chunks.put(b"")
def serve(sock):
    total, chunks = 0, queue.Queue()
    threading.Thread(target=reads, args=(sock, chunks), daemon=True).start()
    while data := chunks.get():
        sock.sendall(data)
        total += len(data)
    sock.sendall(b"that was %d" % total)
    sock.close()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
"""It reads while it writes: one that does not can wait for ever in gVisor (docs/ports.md)."""


LASTING = b"""
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    sock = listener.accept()[0]
    try:
        while sock.recv(65536):
            pass
        while True:
            sock.sendall(b".")
            time.sleep(0.05)
    except OSError:
        with open("over", "a") as file:
            file.write("x")
"""


async def start_echo(ground: Ground, chat: Chat, program: bytes = ECHO) -> int:
    port = free_port()
    await ground.put(chat, "echo.py", program)
    up = f"until : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    await ground.bash(chat, f"python3 echo.py {port} >echo.log 2>&1 & {up}")
    return port


class Forward:
    """`cubicle port`, under way."""

    def __init__(self, process: Forked, output: asyncio.StreamReader, errors: asyncio.StreamReader) -> None:
        self._process = process
        self.pid = process.pid
        self.output = output
        self.errors = errors

    async def wait(self) -> int:
        return await asyncio.to_thread(self._process.wait, 60)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)


@asynccontextmanager
async def forward(ground: Ground, *arguments: str, key: str = KEYS["acme"]) -> AsyncIterator[Forward]:
    words = ["port", *arguments, "--url", f"http://127.0.0.1:{ground.port}", "--key", key]
    async with readable() as (output, write_output), readable() as (errors, write_errors):
        process = await asyncio.to_thread(
            lambda: the_server().start(words, dict(os.environ), ground.folder, write_output, errors=write_errors)
        )
        for descriptor in (write_output, write_errors):
            os.close(descriptor)
        forwarding = Forward(process, output, errors)
        try:
            yield forwarding
        finally:
            forwarding.terminate()
            await forwarding.wait()


@asynccontextmanager
async def readable() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """What is written to the descriptor can be read."""
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    try:
        yield reader, writing
    finally:
        transport.close()


async def local_port(process: Forward) -> int:
    line = (await asyncio.wait_for(process.output.readline(), 60)).decode()
    assert line.startswith("127.0.0.1:"), line
    return int(line.partition(":")[2].partition(" ")[0])


async def test_bytes_of_any_size_and_the_end_of_one_direction(ground: Ground) -> None:
    port = await start_echo(ground, CHAT)
    async with forward(ground, CHAT.id, str(port), "--local", "0") as process:
        local = await local_port(process)
        content = bytes(range(256)) * 40_000

        async def exchange() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", local)

            async def send() -> None:
                writer.write(content)
                await writer.drain()
                writer.write_eof()

            _, seen = await asyncio.gather(send(), reader.read(-1))
            writer.close()
            return seen

        for seen in await asyncio.gather(*(exchange() for _ in range(4))):
            assert hashlib.sha256(seen[: len(content)]).digest() == hashlib.sha256(content).digest()
            assert seen[len(content) :] == b"that was %d" % len(content)


LISTENS = "0A"


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {link[8:-1] for link in links if link.startswith("socket:[")}


async def test_it_listens_on_loopback_only_and_says_what_it_cannot_do(ground: Ground) -> None:
    port = await start_echo(ground, CHAT)
    async with forward(ground, CHAT.id, str(port), "--local", "0") as process:
        local = await local_port(process)
        fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        own = _sockets(process.pid)
        addresses = {line[1] for line in fields if line[3] == LISTENS and line[9] in own}
        assert addresses == {f"0100007F:{local:04X}"}
        closed = await start_echo(ground, CHAT)
        await ground.bash(CHAT, "pkill -f '[e]cho.py' || true")
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        assert await reader.read() == b""
        writer.close()
        assert closed
    for arguments, key, words in (
        (("no-such-chat", "80", "--local", "0"), KEYS["acme"], "no sandbox"),
        ((CHAT.id, "80", "--local", "0"), "a-wrong-key", "key is missing or wrong"),
        ((CHAT.id, "80", "--local", "0"), KEYS["rival"], "no sandbox"),
    ):
        async with forward(ground, *arguments, key=key) as process:
            assert await process.wait() != 0
            assert words in (await process.errors.read()).decode()


async def test_ports_of_the_sandbox_itself_are_not_forwarded(ground: Ground) -> None:
    await ground.bash(CHAT, "true")
    async with forward(ground, CHAT.id, "7681", "--local", "0") as process:
        local = await local_port(process)
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        assert await reader.read() == b""
        writer.close()
        process.terminate()
        assert "part of the sandbox itself" in (await process.errors.read()).decode()


def socket(ground: Ground, port: int | str) -> connect:
    address = f"ws://127.0.0.1:{ground.port}/api/chats/{CHAT.id}/ports/{port}/tcp"
    return connect(address, additional_headers=ground.key(CHAT), proxy=None)


async def test_a_client_that_had_no_more_to_send_and_leaves_is_noticed(ground: Ground) -> None:
    port = await start_echo(ground, CHAT, LASTING)
    async with socket(ground, port) as client:
        await client.send("eof")
        assert await client.recv() == b"."
    async with asyncio.timeout(30):
        while "xx" not in await ground.bash(CHAT, "cat over || true"):  # the first is of who looked whether it is up
            await asyncio.sleep(0.1)


DEAF = b"""
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(1000)
"""


async def test_a_client_that_leaves_is_noticed_though_the_program_reads_nothing(own_name: Ground) -> None:
    """By the pings of the server, and what the kernel says to them."""
    port = await start_echo(own_name, CHAT, DEAF)
    files = Path(f"/proc/{own_name.service.pid}/fd")
    before = len(list(files.iterdir()))
    client = await socket(own_name, port)
    with contextlib.suppress(TimeoutError):
        while True:
            await asyncio.wait_for(client.send(bytes(1 << 17)), 2)
    assert len(list(files.iterdir())) >= before + 2
    client.transport.abort()
    async with asyncio.timeout(120):
        while len(list(files.iterdir())) > before:
            await asyncio.sleep(0.5)


LATE = b"""
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    sock, total = listener.accept()[0], 0
    while not os.path.exists("go"):
        time.sleep(0.05)
    while data := sock.recv(65536):
        total += len(data)
    try:
        sock.sendall(b"that was %d" % total)
    except OSError:
        pass
    sock.close()
"""


async def test_what_waits_for_a_slow_program_is_whole_when_its_end_comes_with_it(ground: Ground) -> None:
    await ground.bash(CHAT, "touch go")  # the first connection is of who looks whether it is up
    port = await start_echo(ground, CHAT, LATE)
    for _ in range(5):
        await ground.bash(CHAT, "rm -f go")
        async with socket(ground, port) as client:
            total = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    total += 1 << 17
                    await asyncio.wait_for(client.send(bytes(1 << 17)), 1)
            rest = asyncio.gather(client.send(b"the last of it"), client.send("eof"))
            await ground.bash(CHAT, "touch go")
            await rest
            assert await client.recv() == b"that was %d" % (total + len(b"the last of it"))


LEAVING = b"""
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    with listener.accept()[0] as sock:
        try:
            sock.sendall(bytes(30_000_000))
        except OSError:
            pass
"""


async def test_a_client_that_pauses_gets_all_that_a_program_sent_before_it_left(own_name: Ground) -> None:
    port = await start_echo(own_name, CHAT, LEAVING)
    sock = tcp.socket()
    sock.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 1 << 16)  # what it does not read lies at the service
    sock.connect(("127.0.0.1", own_name.port))
    address = f"ws://127.0.0.1:{own_name.port}/api/chats/{CHAT.id}/ports/{port}/tcp"
    async with connect(
        address, sock=sock, additional_headers=own_name.key(CHAT), max_queue=1, compression=None
    ) as client:
        size, pauses = 0, [30_000_000 - (1 << 18) * left for left in (8, 4)]
        while isinstance(message := await client.recv(), bytes):
            size += len(message)
            if pauses and size > pauses[0]:
                pauses.pop(0)
                await asyncio.sleep(2.5)  # longer than closing may take
        assert (size, message) == (30_000_000, "eof")


async def test_a_message_of_a_forward_has_a_limit(ground: Ground) -> None:
    port = await start_echo(ground, CHAT)
    async with socket(ground, port) as client:
        await client.send(bytes(1 << 17))
        with pytest.raises(ConnectionClosed) as closed:
            # The header alone: whoever is closed while it sends may not get to read why.
            client.transport.write(struct.pack("!BBQ", 0x82, 0x80 | 127, (1 << 17) + 1) + bytes(4))
            while True:
                await client.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize("port", ["0", "65536", "9" * 5000], ids=len)
async def test_a_number_that_is_no_port_is_neither_forwarded_nor_shared(ground: Ground, port: str) -> None:
    await ground.bash(CHAT, "true")
    async with socket(ground, port) as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "A port is a number from 1 to 65535.")
    for method in ("POST", "DELETE"):
        path = f"/api/chats/{CHAT.id}/ports/{port}/share"
        assert (await ground.service.client.request(method, path, headers=ground.key(CHAT))).status_code == 400
    assert "Traceback" not in ground.service.log()
