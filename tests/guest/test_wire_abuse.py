"""The guest's end: a host connection that breaks the rules loses its link, and nobody else's."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cubicle.drivers.memory import MemoryDriver
from cubicle.guest import wire
from cubicle.machine.machine import Machine
from cubicle.sandbox.warm_pool import connect
from tests.support.frames import message


@pytest.fixture(scope="module")
async def driver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryDriver]:
    """One guest for the whole file: what one test does to it harms no other."""
    driver = MemoryDriver(tmp_path_factory.mktemp("guest"))
    await driver.open()
    await driver.start("one", "a" * 32)
    yield driver
    await driver.delete("one")


@pytest.fixture
async def machine(driver: MemoryDriver) -> AsyncIterator[Machine]:
    machine = await connect(driver, "one")
    yield machine
    machine.close()


async def speak(driver: MemoryDriver, data: bytes, enough: Callable[[bytes], bool] | None = None) -> bytes:
    """Say this on a link of its own; what came back until it was enough, or the guest hung up or fell silent."""
    loop = asyncio.get_running_loop()
    heard = b""
    with await driver.connect("one") as sock:
        try:
            async with asyncio.timeout(60 if enough else 0.2):
                await loop.sock_sendall(sock, data)
                while not (enough and enough(heard)) and (chunk := await loop.sock_recv(sock, 1 << 20)):
                    heard += chunk
        except (TimeoutError, ConnectionError):
            pass
    return heard


def whole(heard: bytes) -> bool:
    """Whether a frame is there to its end."""
    return len(heard) >= wire.HEADER.size and len(heard) >= wire.HEADER.size + wire.read_header(heard)[0]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">IIBBH", wire.MAX_PAYLOAD + 1, 1, wire.OPEN, 0, 0),
        struct.pack(">IIBBH", 3, 1, 77, 0, 0) + b"abc",
        wire.frame(1, wire.OPEN, b"{"),
        message(2, wire.OPEN, op="ping"),
        message(1, wire.OPEN, op="write", path="/tmp/broken/x") + wire.frame(1, wire.DATA, bytes(wire.MAX_PAYLOAD)),
        message(1, wire.OPEN, op="write", path="/tmp/broken/x") * 2,
    ],
    ids=["too long", "unknown kind", "no json", "the guest's own number", "half a file", "a channel twice"],
)
async def test_a_broken_link_harms_no_other(driver: MemoryDriver, machine: Machine, data: bytes) -> None:
    await machine.output("mkdir -p /tmp/broken")
    await speak(driver, data)
    # The guest may still have to notice that its link is gone.
    settled = 'for i in $(seq 600); do [ -z "$(ls -A /tmp/broken)" ] && break; sleep 0.1; done'
    assert (await machine.output(f"{settled}; echo fine; ls -A /tmp/broken"))[1] == b"fine\n"


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "nothing"},
        {"op": "run"},
        {"op": "run", "argv": []},
        {"op": "run", "argv": ["a\0b"]},
        {"op": "run", "argv": "true"},
        {"op": "run", "argv": ["true"], "env": 5},
        {"op": "run", "argv": ["true"], "pty": [1, "x"]},
        {"op": "read"},
        {"op": "read", "path": 5},
        {"op": "read", "path": "/etc/passwd", "offset": "x"},
        {"op": "read", "path": "/etc/passwd", "offset": -5},
        {"op": "list", "path": "/", "depth": {}},
        {"op": "dial", "port": 70000},
        {"op": "dial", "port": True, "x": 1},
        {"op": "dial", "port": 1, "hand": True},
        {"op": "dial", "port": 70000, "hand": True},
        {"op": "listen", "port": -1},
        {"op": "signal", "id": "x"},
        {"op": "attach"},
        {"op": ["run"]},
        {},
    ],
    ids=str,
)
async def test_a_request_that_makes_no_sense_is_refused_in_words(
    driver: MemoryDriver, machine: Machine, request_: dict[str, object]
) -> None:
    heard = await speak(driver, message(1, wire.OPEN, **request_), whole)
    length, channel, kind, _ = wire.read_header(heard)
    assert (channel, kind) == (1, wire.FAIL), heard
    assert wire.read_message(heard[12 : 12 + length])["message"]
    await machine.ping()


async def test_a_host_that_does_not_take_the_socket_leaves_the_guest_with_none(
    driver: MemoryDriver, machine: Machine
) -> None:
    """It is handed over or dropped, whether the host hangs up at once, takes it as plain bytes or never reads."""
    (pid, *_) = (driver._folder / "one" / "pid").read_text().split()
    (guest, *_) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    before = len(os.listdir(f"/proc/{guest}/fd"))
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        request = message(1, wire.OPEN, op="dial", port=server.getsockname()[1], hand=True)
        for reads in (False, True) * 10:
            with await driver.connect("one") as sock:
                await loop.sock_sendall(sock, request)
                if reads:
                    assert whole(await loop.sock_recv(sock, 4096))
            server.accept()[0].close()
        async with asyncio.timeout(30):
            while len(os.listdir(f"/proc/{guest}/fd")) > before:
                await asyncio.sleep(0.05)
    await machine.ping()


async def test_random_frames_never_end_the_guest(driver: MemoryDriver, machine: Machine) -> None:
    seed = random.Random(os.environ.get("CUBICLE_SEED", "1"))
    ops = ["run", "read", "write", "edit", "stat", "list", "remove", "dial", "listen", "attach", "kill", "hello", "x"]
    for _ in range(int(os.environ.get("CUBICLE_FUZZ", "60"))):
        data = b""
        for _ in range(seed.randrange(1, 12)):
            number = seed.choice([1, 3, 5, 2])
            match seed.randrange(4):
                case 0:
                    data += message(
                        number, wire.OPEN, op=seed.choice(ops), path=f"/tmp/{seed.randrange(9)}", argv=["true"], port=1
                    )
                case 1:
                    data += wire.frame(
                        number, seed.randrange(1, 9), seed.randbytes(seed.randrange(60)), seed.randrange(3)
                    )
                case 2:
                    data += wire.credit(number, seed.randrange(1 << 32))
                case _:
                    data += wire.frame(number, seed.choice([wire.EOF, wire.CANCEL]), b"", seed.randrange(3))
        loop = asyncio.get_running_loop()
        with await driver.connect("one") as sock:
            await loop.sock_sendall(sock, data)
    async with asyncio.timeout(60):
        assert (await machine.output("echo fine"))[1] == b"fine\n"
