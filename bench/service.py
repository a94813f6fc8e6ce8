"""A service of its own for a benchmark: `cubicle serve` in another process, gone with its sandboxes at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.side import Side, here
from cubicle.images.store import ImageStore
from cubicle.machine.errors import Unusable
from cubicle.settings import load

_SERVE = "from cubicle.cli import main; main(['serve'])"
_REMOVE = """
import asyncio
from cubicle.drivers.factory import make_driver
from cubicle.settings import load

async def remove():
    driver = make_driver(load())
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)
    await driver.close()

asyncio.run(remove())
"""
"""Sandboxes outlive their service. Its own code removes them, for it knows how it made them."""

_START_SECONDS, _END_SECONDS = 120.0, 60.0
"""On a busy machine; an idle one takes a second."""


class NotServing(SystemExit):
    """The service does not start."""


def heed_signals() -> None:
    """Whoever ends this program, by whatever signal, has it take down what it has up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


@contextmanager
def service(folder: Path, side: Side | None = None, **names: str) -> Iterator[tuple[str, int]]:
    """(address, process id). `names` are settings as the environment spells them; `side` is whose code serves."""
    side = side or here()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"POOL_SIZE": "0", **names, "PORT": str(port), "DATA_DIR": str(folder / "data"), "LOG_FORMAT": "json"}
    environment = side.environment | names
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([side.python, "-c", _SERVE], env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    served = False
    try:
        _wait_for(address, process)
        served = True
        yield address, process.pid
    finally:
        _end(process)
        subprocess.run([side.python, "-c", _REMOVE], env=environment, check=served, timeout=300)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_SECONDS)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            direct.open(address + "/health", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise NotServing("the service does not start")


def image() -> str:
    """The standard image where it is built, else the slim one."""
    store = ImageStore(load().image_dir)
    for variant in ("standard", "slim"):
        try:
            return store.resolve(variant).digest
        except Unusable:
            continue
    raise SystemExit("there is no image: make image")


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_clock(pid: int) -> float:
    """The same to the nanosecond, of all its threads: the kernel's clock of that process."""
    return time.clock_gettime((~pid << 3) | 2)
