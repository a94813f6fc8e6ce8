"""Ways out by a network, for sandboxes that have one: what is known to be open to others is tried from inside.

A target counts only if this process reaches it itself; else it is not checked. What is sent without an answer is judged
by who receives it, not by what the sender was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cubicle.isolation.probe import PRELUDE
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine

_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
_PROGRAM = """
import json
def tcp(host, port, device=""):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.settimeout(4)
        try:
            if device: sock.setsockopt(socket.SOL_SOCKET, 25, device.encode())
            sock.connect((host, port)); return "OPEN"
        except OSError as error: return word(error.errno) if error.errno else "ETIMEDOUT"
def udp(host, port, text, device="", broadcast=False):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            if device: sock.setsockopt(socket.SOL_SOCKET, 25, device.encode())
            if broadcast: sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.sendto(text.encode(), (host, port)); return "SENT"
        except OSError as error: return word(error.errno)
devices = ["", *(name for _, name in socket.if_nameindex() if name != "lo")]
told = json.loads(sys.argv[1])
found = {}
for what, host, port in told["tcp"]:
    found[what] = [tcp(host, port, device) for device in devices]
for what, host, port, text in told["udp"]:
    found[what] = [udp(host, port, text, device, host.endswith(".255")) for device in devices]
print(json.dumps(found))
"""
_RECEIVE = """
import json
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", 5353)); sock.settimeout(1)
print("READY", flush=True)
heard = []
for _ in range(%d):
    try: heard.append(sock.recv(100).decode(errors="replace"))
    except OSError: pass
print(json.dumps(heard), flush=True)
"""
_LISTEN = """
import time
server = socket.create_server(("0.0.0.0", 0))
print(server.getsockname()[1], flush=True)
time.sleep(120)
"""
_MOUNTS = """
import json
print(json.dumps([line.split()[4] for line in open("/proc/self/mountinfo")]))
"""
_KNOWN_MOUNTS = ("/proc", "/dev", "/sys", "/run/cubicle", "/mnt/user-data", "/mnt/skills", "/tmp", "/var/tmp")  # noqa: S108
_KNOWN_FILES = ("/", "/home/assistant", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


@dataclass(frozen=True, slots=True)
class NetworkFinding:
    """One attempt: whether it was refused, or None if it could not be tried."""

    attempt: str
    held: bool | None
    said: str = ""
    layer: str = "network"


async def try_network(
    machine: Machine, other: Machine, own: tuple[str, int], neighbour: tuple[str, int], more: dict[str, tuple[str, int]]
) -> list[NetworkFinding]:
    """From a sandbox whose guest listens at `own`: towards this process, another sandbox, and whatever else."""
    async with _listeners(own[0]) as (here, arrived):
        text, to_other = secrets.token_hex(8), secrets.token_hex(8)
        targets = {"this service": here, "the guest of another sandbox": neighbour, **more}
        opened = {what: await _reached(*where) for what, where in targets.items()}
        inside = {"its own guest, by loopback": ("127.0.0.1", own[1]), "its own guest, by its address": own}
        broadcast = own[0].rpartition(".")[0] + ".255"
        datagrams = [
            ("a datagram to this service", *here, text),
            ("a datagram to another sandbox", neighbour[0], 5353, to_other),
            ("a broadcast", broadcast, 5353, to_other),
            ("a multicast", "224.0.0.251", 5353, to_other),
        ]
        tried = {
            "tcp": [[what, *where] for what, where in (targets | inside).items()],
            "udp": [list(one) for one in datagrams],
        }
        async with _receiver(other) as heard:
            answers = await _tell(machine, tried)
            received = await heard()
        await asyncio.sleep(0.5)
    if answers is None:
        names = [*targets, *inside, *(what for what, *_ in datagrams)]
        return [NetworkFinding(what, None, "the sandbox did not answer") for what in names]
    found = []
    for what in (*targets, *inside):
        said = " ".join(answers.get(what, ["SILENT"]))
        known = opened.get(what, True)
        found.append(NetworkFinding(what, "OPEN" not in said and "SILENT" not in said if known else None, said))
    for what, _, _, token in datagrams:
        got = token in (arrived if token == text else received)
        found.append(NetworkFinding(what, not got, " ".join(answers.get(what, []))))
    found.append(await _inbound(machine, own[0]))
    found.append(await _mounts(machine))
    return found


async def _reached(host: str, port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return True
    return False


@asynccontextmanager
async def _listeners(towards: str) -> AsyncIterator[tuple[tuple[str, int], list[str]]]:
    """Ports of this process at the address that it has on the way to a sandbox, and what datagrams came in."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as way:
        way.connect((towards, 9))
        address = way.getsockname()[0]
    arrived: list[str] = []

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
            arrived.append(data[:100].decode(errors="replace"))

    server = await asyncio.start_server(lambda reader, writer: writer.close(), address, 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Receiver, (address, port))
    try:
        yield (address, port), arrived
    finally:
        transport.close()
        server.close()


@asynccontextmanager
async def _receiver(other: Machine) -> AsyncIterator[Any]:
    """Another sandbox that waits for datagrams; calling what this gives tells what it received."""
    async with other.run(["python3", "-I", "-c", PRELUDE + _RECEIVE % 10], timeout=_SECONDS) as process:
        output = process.output
        said = b""

        async def line() -> str:
            nonlocal said
            while b"\n" not in said:
                said += (await anext(output))[1]
            first, _, said = said.partition(b"\n")
            return first.decode(errors="replace")

        await line()

        async def heard() -> list[str]:
            try:
                return [str(one) for one in json.loads(await line())]
            except (StopAsyncIteration, ValueError, TypeError):
                return []

        yield heard


async def _tell(machine: Machine, tried: dict[str, Any]) -> dict[str, list[str]] | None:
    try:
        _, output = await machine.output(
            ["python3", "-I", "-c", PRELUDE + _PROGRAM, json.dumps(tried)], timeout=_SECONDS * 3
        )
        found = json.loads(output.decode(errors="replace").strip().splitlines()[-1])
    except (SandboxError, ValueError, IndexError):
        return None
    return found if isinstance(found, dict) else None


async def _inbound(machine: Machine, address: str) -> NetworkFinding:
    """A port that a command opened is the sandbox's own; the guest's way to it is another."""
    what = "from outside to a port of a command"
    async with machine.run(["python3", "-I", "-c", PRELUDE + _LISTEN], timeout=_SECONDS) as process:
        try:
            port = int((await anext(process.output))[1].split()[0])
            stream = await machine.dial(port)
        except (SandboxError, StopAsyncIteration, ValueError, IndexError, OSError):
            return NetworkFinding(what, None, "no port could be opened")
        stream.close()
        reached = await _reached(address, port)
    return NetworkFinding(what, not reached, "OPEN" if reached else "")


async def _mounts(machine: Machine) -> NetworkFinding:
    """Nothing of its host is mounted in it."""
    what = "a folder of its host"
    try:
        _, output = await machine.output(["python3", "-I", "-c", _MOUNTS], timeout=_SECONDS)
        found = [str(one) for one in json.loads(output)]
    except (SandboxError, ValueError, TypeError):
        return NetworkFinding(what, None, "the sandbox did not answer", "host files")
    odd = [one for one in found if one not in _KNOWN_FILES and not one.startswith(_KNOWN_MOUNTS)]
    return NetworkFinding(what, not odd, " ".join(odd)[:200], "host files")
