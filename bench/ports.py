"""Ports through the service and without it: python -m bench.ports [latency|throughput|sockets]

The same program in a sandbox of the memory driver is asked directly, from within its network, and by the name of its
port, in turns. The service runs in a process of its own. Needs root.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from websockets.asyncio.client import connect

from bench.report import Report, percentile
from bench.service import cpu_seconds
from cubicle.core.chat import Chat
from tests.ports.conftest import Ground, ground_of
from tests.support.process import free_port

CHAT = Chat("bench", "acme")
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
ROUNDS = 2000
SIZE = 1 << 30
SOCKETS = 500
TURNS = 9
SERVER = b"""
import os, socket, sys, threading
SIZE = int(sys.argv[2])
file = os.memfd_create("big")
os.ftruncate(file, SIZE)
PART = bytes(1 << 18)
def take(sock, left):
    while left:
        left -= len(sock.recv(min(left, 1 << 20)))
    sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting = b""
    while True:
        while b"\\r\\n\\r\\n" not in waiting:
            data = sock.recv(65536)
            if not data:
                return
            waiting += data
        head, _, waiting = waiting.partition(b"\\r\\n\\r\\n")
        if head.startswith(b"PUT"):
            take(sock, SIZE - len(waiting))
            waiting = b""
        elif not head.startswith(b"GET / "):
            sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % SIZE)
            sent = 0
            while sent < SIZE:
                if head.startswith(b"GET /file"):
                    sent += os.sendfile(sock.fileno(), file, sent, SIZE - sent)
                else:
                    sock.sendall(PART)
                    sent += len(PART)
        else:
            sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=512)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class Asker:
    """One connection that asks again and again; plain calls, so that the client costs next to nothing."""

    def __init__(self, sock: socket.socket, host: str, cookie: str = "") -> None:
        self._sock = sock
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"Host: {host}\r\n{f'Cookie: cubicle-port={cookie}' if cookie else 'X: y'}\r\n\r\n"

    def ask(self) -> float:
        began = time.perf_counter()
        self._sock.sendall(f"GET / HTTP/1.1\r\n{self._head}".encode())
        seen = b""
        while not seen.endswith(b"\r\n\r\nok"):
            seen += self._sock.recv(65536)
        return time.perf_counter() - began

    def upload(self) -> float:
        """Bytes a second."""
        began, part = time.perf_counter(), bytes(1 << 18)
        self._sock.sendall(f"PUT /big HTTP/1.1\r\nContent-Length: {SIZE}\r\n{self._head}".encode())
        for _ in range(SIZE // len(part)):
            self._sock.sendall(part)
        seen = b""
        while not seen.endswith(b"\r\n\r\nok"):
            seen += self._sock.recv(65536)
        return SIZE / (time.perf_counter() - began)

    def download(self, path: str = "/big") -> float:
        """Bytes a second."""
        began = time.perf_counter()
        self._sock.sendall(f"GET {path} HTTP/1.1\r\n{self._head}".encode())
        seen = b""
        while b"\r\n\r\n" not in seen:
            seen += self._sock.recv(65536)
        left = SIZE - len(seen.partition(b"\r\n\r\n")[2])
        room = bytearray(1 << 20)
        while left:
            left -= self._sock.recv_into(room, min(left, len(room)))
        return SIZE / (time.perf_counter() - began)


async def askers(ground: Ground) -> tuple[Asker, Asker]:
    port = free_port()
    await ground.put(CHAT, "server.py", SERVER)
    up = f"until : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    await ground.bash(CHAT, f"python3 server.py {port} {SIZE} >log 2>&1 & {up}")
    with ThreadPoolExecutor(1) as thread:
        inside = thread.submit(connect_inside, f"server.py\0{port}", port).result()
    through = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", ground.port))
    return Asker(inside, "x"), Asker(through, ground.host(CHAT, port), ground.cookie(CHAT, port))


def connect_inside(command: str, port: int) -> socket.socket:
    """A connection made in the network of the process with this in its command line. Its thread stays there."""
    found = (path for path in Path("/proc").glob("[0-9]*") if command in _text(path / "cmdline"))
    with open(next(found) / "ns" / "net") as network:
        if LIBC.setns(network.fileno(), CLONE_NEWNET):
            raise OSError("needs root")
    return socket.create_connection(("127.0.0.1", port))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


async def latency(ground: Ground, report: Report) -> None:
    direct, proxied = await askers(ground)

    def measure() -> tuple[list[float], list[float]]:
        for asker in (direct, proxied):
            for _ in range(100):
                asker.ask()
        pairs = [(direct.ask(), proxied.ask()) for _ in range(ROUNDS)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    plain, through = await asyncio.to_thread(measure)
    added = percentile(through, 0.5) - percentile(plain, 0.5)
    report.row("directly", [one * 1000 for one in plain])
    report.row("by its name", [one * 1000 for one in through], added < 0.001, f"{added * 1000:.2f} ms added (p50)")


@dataclass
class Turn:
    """Bytes a second of either way, and the seconds of processor that the service took for its part."""

    plain: float
    through: float
    processor: float

    @classmethod
    def measure(cls, kind: Callable[[Asker], float], direct: Asker, proxied: Asker, pid: int, reverse: bool) -> Turn:
        plain = 0.0 if reverse else kind(direct)
        before = cpu_seconds(pid)
        through = kind(proxied)
        processor = cpu_seconds(pid) - before
        return cls(plain or kind(direct), through, processor)


async def throughput(ground: Ground, report: Report) -> None:
    """The share is of two turns side by side: the speed of a machine changes from one minute to the next."""
    direct, proxied = await askers(ground)
    kinds: dict[str, tuple[Callable[[Asker], float], float | None]] = {
        "1 GB down": (Asker.download, 0.7),
        "1 GB down, sendfile": (lambda asker: asker.download("/file"), None),
        "1 GB up": (Asker.upload, 0.7),
    }
    for name, (kind, bar) in kinds.items():
        measure = partial(Turn.measure, kind, direct, proxied, ground.service.pid)
        turns = [await asyncio.to_thread(measure, reverse=number % 2 == 1) for number in range(1 + TURNS)][
            1:
        ]  # one warms up
        share = median(turn.through / turn.plain for turn in turns)
        plain, through = median(turn.plain for turn in turns), median(turn.through for turn in turns)
        processor = median(turn.processor for turn in turns)
        text = (
            f"{through / 1e6:.0f} MB/s, directly {plain / 1e6:.0f}: {share:.2f} of it; {processor:.2f} s of processor"
        )
        report.note(name, text, None if bar is None else share >= bar)


async def sockets(ground: Ground, report: Report) -> None:
    port = await ground.start_sockets(CHAT)
    headers = {"Cookie": f"cubicle-port={ground.cookie(CHAT, port)}"}
    uri = f"ws://{ground.host(CHAT, port)}/"
    before = _memory(ground.service.pid)
    opened = []
    for _ in range(SOCKETS // 50):
        opened += await asyncio.gather(
            *(
                connect(
                    uri, host="127.0.0.1", port=ground.port, additional_headers=headers, proxy=None, open_timeout=60
                )
                for _ in range(50)
            )
        )
    for client in opened:
        await client.send("here")
    for client in opened:
        assert await client.recv() == "here"
    grown = _memory(ground.service.pid) - before
    report.note(f"{SOCKETS} WebSockets", f"{grown:.1f} MB, {grown * 1000 / SOCKETS:.0f} KB each", grown < 50)
    await asyncio.gather(*(client.close() for client in opened))


def _memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


PARTS = {"latency": latency, "throughput": throughput, "sockets": sockets}


async def main(chosen: list[str]) -> None:
    report = Report("ports")
    with tempfile.TemporaryDirectory() as folder:
        async with ground_of(Path(folder), "memory", POOL_SIZE="0") as ground:
            for name in chosen or PARTS:
                await PARTS[name](ground, report)
    report.show()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
