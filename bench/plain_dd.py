"""`dd` at the ends of TCP sockets: between two of them, which is the yardstick, or to the service."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from pathlib import Path

_LIMIT = 120.0


def through_tcp(source: Path, target: Path) -> None:
    """From file to file. Both `dd` have the loopback socket itself as output and input: nothing lies between them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sending = socket.create_connection(listener.getsockname())
        receiving, _ = listener.accept()
    with sending, receiving:
        ends = [_writes(target, receiving), _reads(source, sending)]
    for end in ends:
        ended(end)


def upload(source: Path, address: str, path: str) -> None:
    """The same sender, and the service in the place of the receiver."""
    with _asked(address, f"POST {path}", f"Content-Length: {source.stat().st_size}") as service:
        ended(_reads(source, service))
        if b" 201 " not in service.recv(4096)[:20]:
            raise SystemExit("the upload failed")


def download(address: str, path: str, target: Path) -> None:
    """The same receiver, and the service in the place of the sender."""
    with _asked(address, f"GET {path}", "Connection: close") as service:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += service.recv(1)  # and nothing of what follows
        if b" 200 " not in head[:20]:
            raise SystemExit("the download failed")
        ended(_writes(target, service))


def ended(process: subprocess.Popen[bytes]) -> None:
    """Waits for a process without the pauses of `Popen.wait(timeout)`, which are as long as what is measured."""
    pidfd = os.pidfd_open(process.pid)
    try:
        if not select.select([pidfd], [], [], _LIMIT)[0]:
            process.kill()
    finally:
        os.close(pidfd)
    if process.wait():
        raise SystemExit(f"{process.args!r} failed")


def _asked(address: str, request: str, header: str) -> socket.socket:
    host, port = address.removeprefix("http://").rsplit(":", 1)
    service = socket.create_connection((host, int(port)), timeout=_LIMIT)
    service.sendall(f"{request} HTTP/1.1\r\nHost: {host}\r\n{header}\r\n\r\n".encode())
    service.setblocking(True)  # for dd, which shares it
    return service


def _reads(source: Path, into: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["dd", f"if={source}", "bs=1M", "status=none"], stdout=into.fileno())


def _writes(target: Path, out_of: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["dd", f"of={target}", "bs=1M", "iflag=fullblock", "status=none"], stdin=out_of.fileno())
