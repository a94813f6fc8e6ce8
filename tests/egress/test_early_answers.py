"""Servers that answer before they have heard all, and hang up: their answer arrives whole."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cubicle.egress.streams import CHUNK
from cubicle.egress.tunnel import relay
from tests.egress.conftest import Behind, shell

pytestmark = pytest.mark.anyio

ANSWER = bytes(range(256)) * 32768


class Reset:
    """A server that has answered and hung up, seen from the proxy: first the answer is read, then the reset."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self._parts = [b"answer"]

    async def read(self, most: int = CHUNK) -> bytes:
        if self._parts:
            return self._parts.pop()
        await self.heard.wait()
        raise ConnectionResetError

    async def write(self, data: bytes | memoryview) -> None:
        self.heard.set()

    async def write_eof(self) -> None:
        pass


class Caller:
    """One that has more to say as soon as it has an answer; or goes on waiting."""

    def __init__(self, *, goes_on: bool) -> None:
        self.got: list[bytes] = []
        self._answered = asyncio.Event()
        self._goes_on = goes_on

    async def read(self, most: int = CHUNK) -> bytes:
        await self._answered.wait()
        if self._goes_on:
            self._goes_on = False
            return b"more"
        return await asyncio.get_running_loop().create_future()

    async def write(self, data: bytes | memoryview) -> None:
        self.got.append(bytes(data))
        self._answered.set()

    async def write_eof(self) -> None:
        self.got.append(b"")


async def test_a_reset_that_was_read_before_it_was_met_in_writing_ends_an_answer_in_order() -> None:
    caller, server = Caller(goes_on=True), Reset()
    async with asyncio.timeout(10):
        await relay(caller, server, lambda: None)
    assert caller.got == [b"answer", b""]


async def test_a_reset_in_the_midst_of_an_answer_is_no_end_in_order() -> None:
    caller, server = Caller(goes_on=False), Reset()
    server.heard.set()
    with pytest.raises(ConnectionResetError):
        async with asyncio.timeout(10):
            await relay(caller, server, lambda: None)
    assert caller.got == [b"answer"]


# Sends without end, and takes its time over the answer.
CALLER = r"""
import socket, sys, threading, time
door, method, target = sys.argv[1:]
sock = socket.create_connection(tuple(door.split(":")))
if method == "CONNECT":
    sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    sock.recv(65536)
sock.sendall(f"POST http://{target}/ HTTP/1.1\r\nHost: {target}\r\nContent-Length: 999999999\r\n\r\n".encode())
def send():
    try:
        while not heard: sock.sendall(bytes(65536))
    except OSError: pass
heard = b""
threading.Thread(target=send, daemon=True).start()
try:
    while part := sock.recv(65536):
        heard += part
        time.sleep(0.003)
except OSError as error: print(error)
head, _, body = heard.partition(b"\r\n\r\n")
print(head.split()[1].decode(), len(body))
"""


def _unheard(sock: socket.socket) -> int:
    """Bytes that the other side's kernel does not have yet."""
    return int(struct.unpack("=i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])


@contextmanager
def impatient_server() -> Iterator[int]:
    """Reads the head of a request, answers, and closes: what it did not read makes that a reset."""

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                heard = b""
                while b"\r\n\r\n" not in heard:
                    heard += caller.recv(65536)
                head = f"HTTP/1.1 413 Too Large\r\nContent-Length: {len(ANSWER)}\r\nConnection: close\r\n\r\n"
                caller.sendall(head.encode() + ANSWER)
                while _unheard(caller):
                    time.sleep(0.001)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("method", ["POST", "CONNECT"])
async def test_who_sends_too_much_hears_why(behind: Behind, method: str) -> None:
    with impatient_server() as port:
        async with behind() as machine:
            said = await shell(machine, f"python3 -c '{CALLER}' $DOOR {method} web.test:{port}")
    assert said.split() == ["413", str(len(ANSWER))]
