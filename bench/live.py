"""The live terminal and browser, through the service and without it: python -m bench.live [terminal|browser|trips]

Real ttyd, tmux and Chromium in a sandbox of the memory driver, which shares the host's network: so the very same
programs are reached directly as well. Round trips to DevTools are measured on the embedded driver too, directly from
within the sandbox's own network. All of it runs in a network namespace of its own: needs root.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from websockets.asyncio.client import ClientConnection, connect

from bench.report import Report, percentile
from tests.browser import pages
from tests.browser.typist import Typist
from tests.browser.watcher import Watcher

ROOT = Path(__file__).parents[1]
LIBC = ctypes.CDLL(None, use_errno=True)
SIOCSIFFLAGS, IFF_UP, CLONE_NEWNET = 0x8914, 1, 0x40000000
BIG = 100 * 1024**2
DIRECT_TERMINAL = "ws://127.0.0.1:7681/ws"


class Bench:
    """A running service and the sandbox behind it."""

    def __init__(self, base: str, network: str, pid: int, folder: Path) -> None:
        self.base = base
        self.ws = base.replace("http", "ws", 1)
        self.pid = pid
        self._network = network
        self._folder = folder

    @property
    def place(self) -> Path:
        (place,) = (self._folder / "memory").iterdir()
        return place

    def inside(self, port: int) -> socket.socket:
        """A connection to a port, made in the network of the sandbox."""
        networks = (f"/proc/{pid}/ns/net" for pid in os.listdir("/proc") if pid.isdecimal())
        theirs = next(path for path in networks if _link(path) == self._network)
        with open("/proc/self/ns/net") as home, open(theirs) as there:
            LIBC.setns(there.fileno(), CLONE_NEWNET)
            try:
                return socket.create_connection(("127.0.0.1", port))
            finally:
                LIBC.setns(home.fileno(), CLONE_NEWNET)

    def memory(self) -> float:
        """MiB that the service holds."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def put(self, name: str, content: bytes) -> None:
        (self.place / "home" / name).write_bytes(content)

    async def post(self, path: str) -> None:
        async with httpx.AsyncClient(base_url=self.base, timeout=90, trust_env=False) as http:
            (await http.post(path)).raise_for_status()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # the process ended meanwhile


@contextmanager
def running(driver: str = "memory") -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="bench-live-") as name:
        command = [sys.executable, "-m", "bench.live_service", name, driver]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdin
            assert service.stdout
            try:
                yield Bench(*service.stdout.readline().split(), service.pid, Path(name))  # type: ignore[arg-type, call-arg]
            finally:
                service.stdin.close()
                service.wait(30)


# ---- terminal


async def keystrokes(typist: Typist, count: int) -> list[float]:
    """Milliseconds from a key to its echo."""
    samples = []
    await typist.type("\x15")
    for n in range(count):
        letter = "abcdefghijklmnopqrstuvwxyz"[n % 26]
        typist.seen.clear()
        began = time.perf_counter()
        await typist.type(letter)
        await typist.until(letter)
        samples.append((time.perf_counter() - began) * 1000)
        if n % 26 == 25:
            await typist.type("\x15")
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.005)
    await typist.type("\x15")
    return samples


async def echo(bench: Bench, report: Report) -> None:
    await bench.post("/terminal/bench/start-ttyd")
    through, direct = [], []
    for _ in range(4):
        for address, samples in ((f"{bench.ws}/terminal/bench/ws", through), (DIRECT_TERMINAL, direct)):
            typist = await Typist.at(address)
            await typist.type('clear; echo rea""dy\r')
            await typist.until("ready")
            await asyncio.sleep(0.2)
            samples += await keystrokes(typist, 60)
            await typist.leave()
    ratio = percentile(through, 0.5) / percentile(direct, 0.5)
    report.row("keystroke to echo, ttyd directly", direct)
    report.row(
        "keystroke to echo, through the service", through, percentile(through, 0.5) <= 15, f"{ratio:.2f} × direct"
    )


async def whole(bench: Bench, report: Report) -> None:
    """All bytes of a large file through a terminal without tmux, which draws only what a screen can show."""
    content = bytes(range(32, 127)) * (BIG // 95)
    bench.put("big", content)
    script = "stty raw -echo; cat /home/assistant/big; sleep 60"
    starting = await asyncio.create_subprocess_exec(
        "nsenter", "-t", str(sandbox_pid(bench)), "-m", "-p", "--", "/bin/sh", "-c",
        f"PATH=/home/assistant/.local/bin:$PATH HOME=/home/assistant ttyd -p 7681 -i 127.0.0.1 -W bash -c '{script}' "
        ">/dev/null 2>&1 </dev/null &",
    )  # fmt: skip
    await starting.wait()
    for name, address in (("directly", DIRECT_TERMINAL), ("through the service", f"{bench.ws}/terminal/bench/ws")):
        before, most, digest, size = bench.memory(), 0.0, hashlib.sha256(), 0
        typist = None
        while typist is None:
            try:
                typist = await Typist.at(address)
            except OSError:
                await asyncio.sleep(0.05)
        began = time.perf_counter()
        while size < len(content):
            message = await asyncio.wait_for(typist.socket.recv(), 60)
            if message[:1] == b"0":
                digest.update(message[1:])  # type: ignore[arg-type]
                size += len(message) - 1
                if size % 8 < 2:
                    most = max(most, bench.memory() - before)
        took = time.perf_counter() - began
        await typist.leave()
        good = digest.digest() == hashlib.sha256(content).digest()
        grown = f", the service grew by {most:.0f} MiB" if "through" in name else ""
        report.note(
            f"100 MB of cat, {name}",
            f"{size / took / 1e6:.0f} MB/s, {'no' if good else 'A'} loss{grown}",
            good and most < 32,
        )


def sandbox_pid(bench: Bench) -> int:
    """The guest's process on the host."""
    outer = (bench.place / "pid").read_text().split()[0]
    return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])


async def many(bench: Bench, report: Report) -> None:
    typists = await asyncio.gather(*(Typist.at(f"{bench.ws}/terminal/bench/ws") for _ in range(50)))
    await asyncio.sleep(2)

    async def one(n: int) -> float:
        began = time.perf_counter()
        await typists[n].type(f"\x15echo t{n}x$((1+1))\r")  # whoever typed last may have left in the middle of a line
        await typists[n].until(f"t{n}x2", 60)
        return (time.perf_counter() - began) * 1000

    # One after the other, while all fifty see everything: they share one session.
    samples = [await one(n) for n in range(50)]
    report.row("50 terminals at once: a command's echo", samples, len(samples) == 50)
    await asyncio.gather(*(typist.leave() for typist in typists))


# ---- browser


async def first_frame(bench: Bench, report: Report) -> Watcher:
    began = time.perf_counter()
    await bench.post("/browser/bench/start")
    started = time.perf_counter()
    watcher = await Watcher.at(f"{bench.ws}/browser/bench/live")
    await watcher.picture()
    whole, after = (time.perf_counter() - began) * 1000, (time.perf_counter() - started) * 1000
    report.row("first frame, from the start of Chromium", [whole], whole <= 2000, f"{after:.0f} ms after it answered")
    return watcher


async def frames(bench: Bench, watcher: Watcher, report: Report) -> None:
    bench.put("moving.html", pages.MOVING.encode())
    await watcher.drive()
    await watcher.open("file:///home/assistant/moving.html")
    await asyncio.sleep(1)
    began, before = time.perf_counter(), watcher.frames
    while time.perf_counter() - began < 5:
        picture = await watcher.picture()
    rate = (watcher.frames - before) / (time.perf_counter() - began)
    width, height = picture.pixels
    report.note(
        "a moving page", f"{rate:.1f} frames/s at {width}×{height}, {len(picture.jpeg) // 1024} KiB each", rate >= 10
    )


async def clicks(bench: Bench, watcher: Watcher, report: Report) -> None:
    bench.put("flip.html", pages.FLIP.encode())
    await watcher.open("file:///home/assistant/flip.html")
    await asyncio.sleep(0.5)
    samples = []
    seen = asyncio.Event()

    async def follow() -> None:
        while True:
            await watcher.picture(60)
            seen.set()

    following = asyncio.create_task(follow())
    for _ in range(40):
        await asyncio.sleep(0.15)
        seen.clear()
        began = time.perf_counter()
        await watcher.click(300, 300)
        async with asyncio.timeout(10):
            await seen.wait()
        samples.append((time.perf_counter() - began) * 1000)
    following.cancel()
    report.row("click to frame", samples, percentile(samples, 0.5) < 200)


async def trips(bench: Bench, report: Report, where: str = "") -> None:
    """A thousand each of the smallest question, which Chromium answers by itself, and of one that a page answers."""
    async with httpx.AsyncClient(trust_env=False) as http:
        targets = (await http.get(f"{bench.base}/browser/bench/json/list")).json()
    page = next(target for target in targets if target["type"] == "page")
    path = page["webSocketDebuggerUrl"].partition("/browser/bench")[2]
    one = await connect(f"{bench.ws}/browser/bench{path}", compression=None, max_size=None)
    two = await connect(f"ws://127.0.0.1:9222{path}", sock=bench.inside(9222), compression=None, max_size=None)
    for method, params in (("Runtime.evaluate", {"expression": "6 * 7"}), ("Browser.getVersion", {})):
        question = json.dumps({"id": 1, "method": method, "params": params})
        through: list[float] = []
        direct: list[float] = []
        for _ in range(20):
            for link, samples in ((one, through), (two, direct)):
                samples += [await _trip(link, question) for _ in range(50)]
        ratio = percentile(through, 0.5) / percentile(direct, 0.5)
        report.row(f"{method}, directly{where}", direct)
        report.row(f"{method}, through the service{where}", through, ratio <= 2, f"{ratio:.2f} × direct")
    await one.close()
    await two.close()


async def _trip(link: ClientConnection, question: str) -> float:
    """Milliseconds until the answer."""
    began = time.perf_counter()
    await link.send(question)
    await link.recv()
    return (time.perf_counter() - began) * 1000


async def main(which: str) -> bool:
    report = Report("The live terminal and the live browser")
    if which in ("", "terminal"):
        with running() as bench:
            await echo(bench, report)
            await many(bench, report)
        with running() as bench:
            await whole(bench, report)
    if which in ("", "browser"):
        with running() as bench:
            watcher = await first_frame(bench, report)
            await frames(bench, watcher, report)
            await clicks(bench, watcher, report)
            await watcher.leave()
    if which in ("", "browser", "trips"):
        for driver, where in (("memory", ""), ("oci", ", embedded")):
            with running(driver) as bench:
                await bench.post("/browser/bench/start")
                await trips(bench, report, where)
    report.show()
    return report.good


def enter_network() -> None:
    """Go on in a network of our own, with a loopback that is up: another's ttyd or Chromium is not measured."""
    if "--inside" not in sys.argv:
        os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", "bench.live", "--inside", *sys.argv[1:]])
    sys.argv.remove("--inside")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))


if __name__ == "__main__":
    enter_network()
    sys.exit(0 if asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "")) else 1)
