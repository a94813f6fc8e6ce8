"""Files in and out of a true service: speed against a plain TCP socket in the same run, and flat memory.

python -m bench.files [--driver oci|memory] [--size 100]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.report import Report, percentile
from cubicle.app import make_driver
from cubicle.settings import Settings, load

MB = 1_000_000
ROUNDS = 5
AT_ONCE = 20


def plain_tcp(source: Path, target: Path) -> float:
    """MB/s of a file through a loopback socket into another file: the yardstick."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        began = time.perf_counter()
        sender = threading.Thread(target=_send, args=(source, listener.getsockname()))
        sender.start()
        connection, _ = listener.accept()
        with connection, target.open("wb") as file:
            while chunk := connection.recv(1 << 20):
                file.write(chunk)
        sender.join()
    return source.stat().st_size / MB / (time.perf_counter() - began)


def _send(source: Path, address: tuple[str, int]) -> None:
    with socket.create_connection(address) as sock, source.open("rb") as file:
        while chunk := file.read(1 << 20):
            sock.sendall(chunk)


@contextmanager
def service(driver: str, folder: Path) -> Iterator[tuple[str, int]]:
    """A service of its own; (address, process id)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"DRIVER": driver, "PORT": str(port), "DATA_DIR": str(folder / "data"), "LOG_FORMAT": "json"}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-c", "from cubicle.cli import main; main(['serve'])"]
        process = subprocess.Popen(command, env=os.environ | names | {"POOL_SIZE": "0"}, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address)
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        asyncio.run(_remove_sandboxes(load(driver=driver, data_dir=folder / "data")))


async def _remove_sandboxes(settings: Settings) -> None:
    """Sandboxes outlive their service."""
    driver = make_driver(settings)
    await driver.open()
    for seen in await driver.running():
        await driver.delete(seen.name)
    await driver.close()


def _wait_for(address: str) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(300):
        try:
            direct.open(address + "/health", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service does not start")


def curl(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["curl", "-sf", "--noproxy", "*", "-o", "/dev/null", "-H", "Expect:", *arguments])


def speed(size: float, *arguments: str) -> float:
    began = time.perf_counter()
    if curl(*arguments).wait(120):
        raise SystemExit("a request failed")
    return size / (time.perf_counter() - began)


def memory(pid: int, field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", default="memory")
    parser.add_argument("--size", type=int, default=100, help="MB")
    options = parser.parse_args()
    report = Report(f"Files over HTTP, {options.size} MB, driver {options.driver}")
    with tempfile.TemporaryDirectory() as name, service(options.driver, Path(name)) as (address, pid):
        source = Path(name) / "source"
        source.write_bytes(os.urandom(options.size * MB))
        up = ("--data-binary", f"@{source}", "-X", "POST")
        speeds: dict[str, list[float]] = {"tcp": [], "upload": [], "download": [], "archive": []}
        for _ in range(ROUNDS):
            speeds["tcp"].append(plain_tcp(source, Path(name) / "copy"))
            speeds["upload"].append(speed(options.size, *up, f"{address}/api/uploads/bench/f"))
            speeds["download"].append(speed(options.size, f"{address}/files/bench/f"))
        speeds["archive"].append(speed(options.size, f"{address}/files/bench/archive"))
        yardstick = percentile(speeds["tcp"], 0.5)
        for what, samples in speeds.items():
            middle = percentile(samples, 0.5)
            bar = middle >= yardstick / 2 if what in ("upload", "download") else None
            report.note(what, f"{middle:.0f} MB/s, {middle / yardstick:.2f} of plain TCP", bar)
        for what in ("upload", "download"):
            before = memory(pid, "VmRSS")
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted anew
            way = up if what == "upload" else ()
            door = "api/uploads" if what == "upload" else "files"
            running = [curl(*way, f"{address}/{door}/bench/f{number}") for number in range(AT_ONCE)]
            if sum(process.wait(300) for process in running):
                raise SystemExit("a request failed")
            grown = memory(pid, "VmHWM") - before
            report.note(
                f"{AT_ONCE} {what}s at once", f"memory of the service grew by {grown:.1f} MB at most", grown <= 20
            )
    report.show()
    sys.exit(0 if report.good else 1)


if __name__ == "__main__":
    main()
