"""`dd` at the ends of TCP sockets: between two of them (the yardstick), as one types it, and to the service."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import time
from pathlib import Path

_LIMIT = 120.0


def as_typed(source: Path, target: Path) -> float:
    """`nc -l PORT > target` in one terminal, `dd if=source bs=1M > /dev/tcp/…` in the other; the seconds it took."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with target.open("wb") as out:
        listen = ["nc", "-l", "-N", "127.0.0.1", str(port)]
        receiving = subprocess.Popen(listen, stdout=out, stdin=subprocess.DEVNULL)
    _until_somebody_listens(port)
    began = time.perf_counter()
    typed = f"exec dd if='{source}' bs=1M status=none > /dev/tcp/127.0.0.1/{port}"
    ended(subprocess.Popen(["bash", "-c", typed]))
    ended(receiving)
    return time.perf_counter() - began


def _until_somebody_listens(port: int) -> None:
    """Seen from outside: `nc` would take a try to connect for the connection."""
    for _ in range(500):
        if re.search(rf":{port:04X} 0+:0+ 0A ", Path("/proc/net/tcp").read_text()):
            return
        time.sleep(0.01)
    raise SystemExit("nc does not listen")


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
