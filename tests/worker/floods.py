"""Programs that attack the network worker from inside a sandbox, and servers that help them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# argv: the attack, the number of connections, and the ports of a source that sends without end and a sink that never
# reads. Prints "ready" when all of it is under way, and goes on until it is killed.
ATTACK = r"""
import os, socket, sys, threading, time
kind, number, source, sink = sys.argv[1], *map(int, sys.argv[2:5])
proxy = ("127.0.0.1", int(os.environ["http_proxy"].rpartition(":")[2]))
held = []
def connected(target=None):
    sock = socket.create_connection(proxy, timeout=60)
    if target:
        sock.sendall(b"CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n" % target)
        sock.recv(100)
    return sock
def go_on(work):
    def run():
        while True:
            try:
                work()
            except OSError:
                time.sleep(0.01)
    for _ in range(4):
        threading.Thread(target=run, daemon=True).start()
def churn():
    connected().close()
def requests():
    with connected() as sock:
        for _ in range(50):
            sock.sendall(b"GET http://10.0.0.1/ HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n")
            if not sock.recv(65536):
                return
def crumbs():
    with connected() as sock:
        sock.setsockopt(6, 1, 1)
        sock.sendall(b"GET http://10.0.0.1/ HTTP/1.1\r\nX: ")
        for _ in range(60000):
            sock.sendall(b"x")
def names():
    with connected() as sock:
        sock.sendall(b"CONNECT n%d.invalid:80 HTTP/1.1\r\nHost: x\r\n\r\n" % time.monotonic_ns())
        sock.recv(100)
def upload(sock):
    try:
        while True:
            sock.sendall(bytes(1 << 20))
    except OSError:
        pass
for _ in range(number):
    try:
        if kind == "idle":
            held.append(connected())
        elif kind == "half":
            sock = connected()
            sock.sendall(b"GET http://10.0.0.1/ HTTP/1.1\r\nX: " + b"x" * 60000)
            sock.shutdown(socket.SHUT_WR)
            held.append(sock)
        elif kind == "unread":
            held.append(connected(b"127.0.0.1:%d" % source))
        elif kind == "upload":
            held.append(connected(b"127.0.0.1:%d" % sink))
            threading.Thread(target=upload, args=(held[-1],), daemon=True).start()
        elif kind in ("churn", "requests", "crumbs", "names"):
            go_on({"churn": churn, "requests": requests, "crumbs": crumbs, "names": names}[kind])
            break
    except OSError:
        pass
print("ready", flush=True)
time.sleep(1000)
"""
KINDS = ("idle", "half", "unread", "upload", "churn", "requests", "crumbs", "names")


@contextmanager
def source_and_sink() -> Iterator[tuple[int, int]]:
    """The ports of a server that sends without end, and of one that never reads."""
    with _server() as source, _server() as sink:
        threading.Thread(target=_serve, args=(source, True), daemon=True).start()
        threading.Thread(target=_serve, args=(sink, False), daemon=True).start()
        try:
            yield source.getsockname()[1], sink.getsockname()[1]
        finally:
            for sock in (source, sink):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def _server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


def _serve(server: socket.socket, sends: bool) -> None:
    """Each caller's buffer is filled once: whoever does not read needs no more."""
    held = []
    with suppress(OSError):
        while True:
            sock, _ = server.accept()
            sock.setblocking(False)
            held.append(sock)
            with suppress(BlockingIOError):
                for _ in range(64 if sends else 0):
                    sock.send(bytes(1 << 20))
    for sock in held:
        sock.close()
