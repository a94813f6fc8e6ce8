"""Files in and out of a true service: speed against `dd` through a plain TCP socket in the same run, and flat memory.

python -m bench.files [--driver oci|memory] [--size 100]

The bar is half of what `dd` reaches from a file through a loopback socket into a new file on the disk that the uploads
lie on: two `dd`, each with the bare socket as its end. The service's clients are `dd` too, so that it stands in the
place of one of them and all else is equal. Beside it: the same into /dev/null, and, where there is `nc`, how it is
typed (`dd` into bash's /dev/tcp, `nc -l` into a file), which `nc` makes slower.
The ways take turns, so that whatever else the machine does hits them alike, and the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.plain_dd import as_typed, download, ended, through_tcp, upload
from bench.report import Report
from bench.service import cpu_seconds, image, service

MB = 1_000_000
ROUNDS = 41
AT_ONCE = 20
BAR = 0.5


def curl(*arguments: str) -> subprocess.Popen[bytes]:
    # No `Expect`: the client's wait for a leave to send would be counted.
    return subprocess.Popen(["curl", "-sf", "--noproxy", "*", "-H", "Expect:", *arguments], stdout=subprocess.DEVNULL)


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def memory(pid: int, field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


class Ways:
    """What is measured: each moves the one file to a new name, whose removal is not on the clock."""

    def __init__(self, folder: Path, address: str, size: int) -> None:
        self._address = address
        self.source = folder / "source"
        self.source.write_bytes(os.urandom(size * MB))
        self._upload("kept")
        # The uploads lie on the sandbox's own disk: the yardstick has to write to that one.
        self._disk = next((folder / "data").rglob("kept"), folder / "kept").parent

    def typed(self) -> float:
        target = self._disk / "by-nc"
        spent = as_typed(self.source, target)
        target.unlink()
        return spent

    def dd(self) -> float:
        target = self._disk / "by-dd"
        spent = timed(lambda: through_tcp(self.source, target))
        target.unlink()
        return spent

    def dd_to_nowhere(self) -> float:
        return timed(lambda: through_tcp(self.source, Path("/dev/null")))

    def uploaded(self) -> float:
        spent = timed(lambda: self._upload("new"))
        ended(curl("-X", "DELETE", f"{self._address}/api/uploads/bench/new"))
        return spent

    def downloaded(self) -> float:
        target = self._disk / "fetched"
        spent = timed(lambda: download(self._address, "/files/bench/kept", target))
        target.unlink()
        return spent

    def _upload(self, name: str) -> None:
        upload(self.source, self._address, f"/api/uploads/bench/{name}")

    def up(self, name: str) -> tuple[str, ...]:
        # Streamed: --data-binary would read the whole file first, on the clock.
        return ("-T", str(self.source), "-X", "POST", f"{self._address}/api/uploads/bench/{name}")

    def down(self, name: str) -> tuple[str, ...]:
        return ("-o", "/dev/null", f"{self._address}/files/bench/{name}")


def speeds(ways: Ways, size: int, report: Report) -> None:
    taken: dict[Callable[[], float], list[float]] = {
        way: [] for way in (ways.dd, ways.uploaded, ways.downloaded, ways.dd_to_nowhere)
    }
    if shutil.which("nc"):
        taken[ways.typed] = []
    for number in range(ROUNDS):
        for way in list(taken)[:: 1 if number % 2 else -1]:
            taken[way].append(way())
    speed = {way: size / median(samples) for way, samples in taken.items()}
    plain = speed[ways.dd]
    report.note("dd through a socket to the disk", f"{plain:.0f} MB/s: the yardstick")
    report.note("dd through a socket to /dev/null", f"{speed[ways.dd_to_nowhere]:.0f} MB/s")
    if ways.typed in speed:
        report.note("dd through a socket and nc to the disk", f"{speed[ways.typed]:.0f} MB/s")
    for name, way in (("upload", ways.uploaded), ("download", ways.downloaded)):
        ratio = speed[way] / plain
        report.note(name, f"{speed[way]:.0f} MB/s, {ratio:.2f} of the yardstick", ratio >= BAR)


def costs(ways: Ways, pid: int, size: int, report: Report) -> None:
    """Processor time, which other work on the machine does not change as much."""
    before = cpu_of_children()
    ways.dd()
    report.note("dd, both ends", f"{(cpu_of_children() - before) * 100_000 / size:.0f} ms of CPU per 100 MB")
    for name, way in (("upload", ways.uploaded), ("download", ways.downloaded)):
        before = cpu_seconds(pid)
        for _ in range(5):
            way()
        spent = (cpu_seconds(pid) - before) / 5
        report.note(f"{name}, the service's part", f"{spent * 100_000 / size:.0f} ms of CPU per 100 MB")


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def at_once(ways: Ways, pid: int, report: Report) -> None:
    for what, way in (("upload", ways.up), ("download", ways.down)):
        before = memory(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted anew
        running = [curl(*way(f"at-once-{number}")) for number in range(AT_ONCE)]
        for process in running:
            ended(process)
        grown = memory(pid, "VmHWM") - before
        report.note(f"{AT_ONCE} {what}s at once", f"memory of the service grew by {grown:.1f} MB at most", grown <= 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="oci")
    parser.add_argument("--size", type=int, default=100, help="MB")
    options = parser.parse_args()
    names = {"DRIVER": options.driver} | ({"SANDBOX_IMAGE": image()} if options.driver == "oci" else {})
    report = Report(f"Files over HTTP, {options.size} MB, driver {options.driver}")
    # Not /tmp, which may be memory: the yardstick and the service write to a disk.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, service(Path(name), **names) as (address, pid):
        ways = Ways(Path(name), address, options.size)
        speeds(ways, options.size, report)
        costs(ways, pid, options.size, report)
        archive = timed(lambda: ended(curl("-o", "/dev/null", f"{address}/files/bench/archive")))
        report.note("archive", f"{options.size / archive:.0f} MB/s")
        at_once(ways, pid, report)
    report.show()
    sys.exit(0 if report.good else 1)


if __name__ == "__main__":
    main()
