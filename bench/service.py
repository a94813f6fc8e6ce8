"""A service of its own for a benchmark: `cubicle serve` in another process, gone with its sandboxes at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cubicle.drivers.factory import make_driver
from cubicle.drivers.oci.images import ImageStore
from cubicle.machine.errors import Unusable
from cubicle.settings import Settings, load


@contextmanager
def service(folder: Path, **names: str) -> Iterator[tuple[str, int]]:
    """(address, process id). `names` are settings as the environment spells them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"POOL_SIZE": "0", **names, "PORT": str(port), "DATA_DIR": str(folder / "data"), "LOG_FORMAT": "json"}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-c", "from cubicle.cli import main; main(['serve'])"]
        process = subprocess.Popen(command, env=os.environ | names, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, process)
        yield address, process.pid
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        settings = {name.lower(): value for name, value in names.items()}
        asyncio.run(_remove_sandboxes(load(**settings)))


async def _remove_sandboxes(settings: Settings) -> None:
    """Sandboxes outlive their service."""
    driver = make_driver(settings)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)
    await driver.close()


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(300):
        try:
            direct.open(address + "/health", timeout=1).close()
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    raise SystemExit("the service does not start")


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
