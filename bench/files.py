"""Files in and out of a true service: speed against a plain TCP socket in the same run, and flat memory.

python -m bench.files [--driver oci|memory] [--size 100]
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.report import Report, percentile
from bench.service import cpu_seconds, image, service

MB = 1_000_000
ROUNDS = 9
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
    parser.add_argument("--driver", default="oci")
    parser.add_argument("--size", type=int, default=100, help="MB")
    options = parser.parse_args()
    names = {"DRIVER": options.driver} | ({"SANDBOX_IMAGE": image()} if options.driver == "oci" else {})
    report = Report(f"Files over HTTP, {options.size} MB, driver {options.driver}")
    with tempfile.TemporaryDirectory() as name, service(Path(name), **names) as (address, pid):
        source = Path(name) / "source"
        source.write_bytes(os.urandom(options.size * MB))
        # Streamed: --data-binary would read the whole file first, on the clock.
        up = ("-T", str(source), "-H", "Expect:", "-X", "POST")
        speeds: dict[str, list[float]] = {"tcp": [], "upload": [], "download": [], "archive": []}
        for number in range(ROUNDS):  # a new file each time, on both ways
            speeds["tcp"].append(plain_tcp(source, Path(name) / f"copy{number}"))
            speeds["upload"].append(speed(options.size, *up, f"{address}/api/uploads/bench/f{number}"))
            speeds["download"].append(speed(options.size, f"{address}/files/bench/f{number}"))
            if not number:
                speeds["archive"].append(speed(options.size, f"{address}/files/bench/archive"))
        for what, samples in speeds.items():
            # Each round against the yardstick of the same round: what else the machine does hits both.
            ratio = percentile([ours / plain for ours, plain in zip(samples, speeds["tcp"], strict=False)], 0.5)
            bar = ratio >= 0.5 if what in ("upload", "download") else None
            report.note(what, f"{percentile(samples, 0.5):.0f} MB/s, {ratio:.2f} of plain TCP", bar)
        ways = {"upload": (*up, f"{address}/api/uploads/bench/g"), "download": (f"{address}/files/bench/g",)}
        for what, arguments in ways.items():
            spent = cpu_seconds(pid)
            speed(options.size, *arguments)
            spent = (cpu_seconds(pid) - spent) * 100 / options.size
            report.note(f"{what}, its cost for the service", f"{spent * 1000:.0f} ms of CPU per 100 MB")
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
