"""Servers that answer before they have heard all, and hang up: their answer arrives whole."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.egress.conftest import Behind, shell

pytestmark = pytest.mark.anyio

ANSWER = bytes(range(256)) * 32768

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
