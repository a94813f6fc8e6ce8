"""Throughput and added latency of the egress proxy: python -m bench.egress [MiB]

A server on the loopback, a true guest (memory driver), and clients inside the sandbox that go through the proxy by
CONNECT; the same clients without the proxy are the measure. Prints one table. Times mean something on a quiet machine
only; the CPU that a gigabyte costs hardly changes with the load.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from ipaddress import ip_network
from pathlib import Path

import uvloop

from cubicle.agents.budget import BudgetLimits, BudgetStore
from cubicle.agents.live_tokens import LiveTokens
from cubicle.core.chat import Chat
from cubicle.core.network import NetworkMode
from cubicle.drivers.memory import MemoryDriver
from cubicle.egress.policy import Policy, Rule
from cubicle.machine.machine import Machine
from cubicle.sandbox.warm_pool import connect
from cubicle.worker.network import NetworkWorker
from cubicle.worker.setup import Setup

# Sends as much as a line asks for, or takes as much and says when it is done, or echoes.
SERVER = r"""
import socket, threading
def serve(sock):
    with sock:
        sock.setsockopt(6, 1, 1)
        file = sock.makefile("rb", buffering=0)
        while line := file.readline():
            word, _, number = line.decode().strip().partition(" ")
            if word == "get":
                left, block = int(number), memoryview(bytes(1 << 20))
                while left > 0:
                    left -= sock.send(block[:left])
            elif word == "put":
                left, buffer = int(number), bytearray(1 << 20)
                while left > 0:
                    left -= sock.recv_into(buffer)
                sock.sendall(b"done\n")
            else:
                sock.sendall(b"echo\n")
server = socket.create_server(("127.0.0.1", 0), backlog=256)
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

CLIENT = r"""
import json, socket, sys, time
port, proxy, what, amount = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def dial():
    sock = socket.create_connection(("127.0.0.1", proxy or port))
    sock.setsockopt(6, 1, 1)
    if proxy:
        sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port)
        head = sock.recv(4096)
        assert b" 200 " in head and head.endswith(b"\r\n\r\n"), head
    return sock
if what == "get":
    sock, buffer = dial(), bytearray(1 << 20)
    start, left = time.perf_counter(), amount
    sock.sendall(b"get %d\n" % amount)
    while left > 0:
        left -= sock.recv_into(buffer)
    print(amount / (time.perf_counter() - start) / 1e6)
elif what == "put":
    sock, block = dial(), memoryview(bytes(1 << 20))
    start, left = time.perf_counter(), amount
    sock.sendall(b"put %d\n" % amount)
    while left > 0:
        left -= sock.send(block[:left])
    assert sock.recv(5)
    print(amount / (time.perf_counter() - start) / 1e6)
else:
    connects, trips = [], []
    for _ in range(amount):
        start = time.perf_counter()
        sock = dial()
        connects.append((time.perf_counter() - start) * 1e3)
        for _ in range(5):
            start = time.perf_counter()
            sock.sendall(b"ping\n")
            assert sock.recv(5)
            trips.append((time.perf_counter() - start) * 1e3)
        sock.close()
    at = lambda values, part: sorted(values)[int(len(values) * part)]
    print(json.dumps([at(connects, .5), at(connects, .95), at(trips, .5), at(trips, .95)]))
"""


def worker_of(policy: Policy, folder: Path) -> NetworkWorker:
    tokens = LiveTokens(folder / "agent-runs", b"", max_seconds=1)
    setup = Setup(policy, folder=folder / "egress")
    return NetworkWorker(setup, budgets=BudgetStore(folder / "agents", BudgetLimits()), tokens=tokens)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def client(machine: Machine, port: int, proxy: int, what: str, number: int) -> list[float]:
    """The client's own figures; proxy 0 is straight to the server."""
    _, output = await machine.output(["python3", "-c", CLIENT, str(port), str(proxy), what, str(number)])
    answer = json.loads(output)
    return answer if isinstance(answer, list) else [answer]


async def measure(machine: Machine, worker: int, port: int, amount: int) -> list[tuple[str, str, str, str]]:
    proxy = int(machine.environment["HTTP_PROXY"].rpartition(":")[2])
    rows = []
    for what, name in (("get", "download, one connection"), ("put", "upload, one connection")):
        direct = max([(await client(machine, port, 0, what, amount))[0] for _ in range(3)])
        before = processor_seconds(worker)
        through = max([(await client(machine, port, proxy, what, amount))[0] for _ in range(3)])
        seconds = (processor_seconds(worker) - before) / (3 * amount / 1e9)
        rows.append((name, f"{direct:.0f} MB/s", f"{through:.0f} MB/s", "≥ 500 MB/s"))
        rows.append(("its cost for the worker", "", f"{seconds:.2f} s of CPU a GB", ""))
    direct_times = await client(machine, port, 0, "ping", 300)
    proxy_times = await client(machine, port, proxy, "ping", 300)
    names = ("connect, p50", "connect, p95", "round trip, p50", "round trip, p95")
    for name, before, after in zip(names, direct_times, proxy_times, strict=True):
        rows.append((name, f"{before:.2f} ms", f"{after:.2f} ms", "< 3 ms added" if "p50" in name else ""))
    return rows


async def main(amount: int) -> None:
    policy = Policy(NetworkMode.OPEN, (Rule("bench", networks=(ip_network("127.0.0.0/8"),)),))
    chat = Chat("bench")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert server.stdout is not None
    port = int(await asyncio.to_thread(server.stdout.readline))
    with tempfile.TemporaryDirectory() as folder:
        driver = MemoryDriver(Path(folder))
        await driver.open()
        await driver.start(chat.digest, chat.digest)
        try:
            machine = await connect(driver, chat.digest)
            network = worker_of(policy, Path(folder))
            async with network, network.attached(chat, machine):
                for row in [("", "direct", "through the proxy", "target"), ("---",) * 4]:
                    print("| " + " | ".join(row) + " |")
                for row in await measure(machine, network.pid or 0, port, amount):
                    print("| " + " | ".join(row) + " |")
            machine.close()
        finally:
            await driver.delete(chat.digest)
            server.terminate()
            server.wait()


if __name__ == "__main__":
    uvloop.run(main((int(sys.argv[1]) if len(sys.argv) > 1 else 1024) << 20))
