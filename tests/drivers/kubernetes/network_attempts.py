"""What a command of a sandbox may try on the network; run inside by test_container_programs.py, with nothing but Python."""

from __future__ import annotations

import errno
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable

OWN, NEIGHBOUR, BROADCAST = "10.99.0.2", "10.99.0.3", "10.99.0.255"


def word(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "TIMEOUT"
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def tcp(host: str, port: int, device: str = "") -> str:
    with socket.socket() as sock:
        sock.settimeout(4)
        try:
            if device:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            sock.connect((host, port))
        except OSError as error:
            return word(error)
    return "OPEN"


def udp(host: str, device: str = "", family: int = socket.AF_INET) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            if device:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            six = family == socket.AF_INET6
            sock.sendto(b"x", (host, 5353, 0, socket.if_nametoindex("eth0")) if six else (host, 5353))
        except OSError as error:
            return word(error)
    return "SENT"


def made(family: int, kind: int, protocol: int) -> str:
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as error:
        return word(error)
    return "MADE"


def flush() -> str:
    """Delete every table by netlink."""
    edge, body = struct.pack(">BBH", 0, 0, 10), struct.pack(">BBH", 1, 0, 0)

    def message(kind: int, flags: int, content: bytes) -> bytes:
        return struct.pack("=IHHII", len(content) + 16, kind, flags, 1, 0) + content

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as link:
        link.settimeout(5)
        link.bind((0, 0))
        link.send(message(16, 1, edge) + message(10 << 8 | 2, 5, body) + message(17, 1, edge))
        error = -struct.unpack_from("=i", link.recv(4096), 16)[0]
    return errno.errorcode[error] if error else "FLUSHED"


def own(address: str) -> str:
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        return tcp(address, server.getsockname()[1])


def attempts() -> dict[str, Callable[[], str]]:
    return {
        "guest by loopback": lambda: tcp("127.0.0.1", 8000),
        "guest by own address": lambda: tcp(OWN, 8000),
        "neighbour": lambda: tcp(NEIGHBOUR, 9000),
        "neighbour by device": lambda: tcp(NEIGHBOUR, 9000, "eth0"),
        "datagram to neighbour": lambda: udp(NEIGHBOUR),
        "datagram by device": lambda: udp(NEIGHBOUR, "eth0"),
        "broadcast": lambda: udp(BROADCAST),
        "multicast": lambda: udp("224.0.0.251", "eth0"),
        "multicast of IPv6": lambda: udp("ff02::1", "eth0", socket.AF_INET6),
        "raw socket": lambda: made(socket.AF_INET, socket.SOCK_RAW, 1),
        "packet socket": lambda: made(socket.AF_PACKET, socket.SOCK_RAW, 3),
        "flush the rules": flush,
        "own loopback": lambda: own("127.0.0.1"),
        "the host by loopback": lambda: own("127.0.0.11"),
        "own address": lambda: own(OWN),
    }


def serve(ports: list[int]) -> None:
    servers = [socket.create_server(("0.0.0.0", port)) for port in ports]
    time.sleep(300)
    del servers


def answers(neighbour: str) -> None:
    """What somebody outside reaches: a port of a command, and the guest's."""
    with socket.create_server(("0.0.0.0", 9100)):
        code = "import sys; sys.path.insert(0, sys.argv[1]); import network_attempts as n; print(n.tcp(n.OWN, int(sys.argv[2])))"
        folder = __file__.rpartition("/")[0]
        asked = ["nsenter", f"--net=/proc/{neighbour}/ns/net", sys.executable, "-c", code, folder]
        found = {}
        for name, port in (("outside in", "9100"), ("outside to the guest", "8000")):
            found[name] = subprocess.run([*asked, port], capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps(found))


def main() -> None:
    match sys.argv[1:]:
        case ["serve", *ports]:
            serve([int(port) for port in ports])
        case ["ready", host, port]:
            sys.exit(tcp(host, int(port)) != "OPEN")
        case ["answers", neighbour]:
            answers(neighbour)
        case _:
            print(json.dumps({name: attempt() for name, attempt in attempts().items()}))


if __name__ == "__main__":
    main()
