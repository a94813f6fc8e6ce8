"""The drivers side by side in one run: a warm `true`, a start, a stream of output.

scripts/with-dockerd python -m bench.drivers [--rounds 200]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from bench.report import Report, percentile
from cubicle.drivers.factory import make_driver
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.warm_pool import connect, new_name
from cubicle.settings import load

MB = 1_000_000
BARS = {"docker": 1.3, "oci-runsc": 6.0, "docker-runsc": 6.0}
"""Warm `true`, as a multiple of the embedded driver on runc in the same run."""

KINDS = {
    "oci-runc": {"driver": "oci", "oci_runtime": "runc"},
    "docker": {"driver": "docker"},
    "oci-runsc": {"driver": "oci", "oci_runtime": "runsc"},
    "docker-runsc": {"driver": "docker", "docker_runtime": "runsc"},
}


@asynccontextmanager
async def sandbox(kind: dict[str, str], folder: Path, image: str) -> AsyncIterator[tuple[Machine, float]]:
    """A machine of one driver, and how long its start took."""
    driver = make_driver(load(data_dir=folder, sandbox_image=image, **kind))
    await driver.open()
    name = new_name()
    try:
        began = time.perf_counter()
        await driver.start(name, None)
        machine = await connect(driver, name)
        yield machine, (time.perf_counter() - began) * 1000
        machine.close()
    finally:
        await driver.delete(name)
        await driver.close()


async def measure(rounds: int, image: str, report: Report) -> None:
    """Turn by turn, so that whatever else the machine does meets them all."""
    folder = Path(tempfile.mkdtemp(prefix="cubicle-bench-"))
    try:
        async with _all(folder, image, report) as machines:
            times: dict[str, list[float]] = {name: [] for name in machines}
            for _ in range(rounds):
                for name, machine in machines.items():
                    began = time.perf_counter()
                    await machine.output("true")
                    times[name].append((time.perf_counter() - began) * 1000)
            base = percentile(times["oci-runc"], 0.5)
            for name, taken in times.items():
                ratio, bar = percentile(taken, 0.5) / base, BARS.get(name)
                note = f"{ratio:.2f} x embedded" + (f" (bar {bar})" if bar else "")
                report.row(f"warm bash -c true, {name}", taken, bar=bar is None or ratio <= bar, note=note)
            for name, machine in machines.items():
                began, total = time.perf_counter(), 0
                async with machine.run(f"head -c {50 * MB} /dev/zero") as process:
                    async for _, chunk in process.output:
                        total += len(chunk)
                rate = total / MB / (time.perf_counter() - began)
                report.note(f"50 MB of output, {name}", f"{rate:.0f} MB/s", total == 50 * MB)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _all(folder: Path, image: str, report: Report) -> AsyncIterator[dict[str, Machine]]:
    async with AsyncExitStack() as stack:
        machines = {}
        for name, kind in KINDS.items():
            try:
                machine, took = await stack.enter_async_context(sandbox(kind, folder / name, image))
            except SandboxError as error:
                report.note(name, f"left out: {error}")
                continue
            report.note(f"start until connected, {name}", f"{took:.0f} ms")
            machines[name] = machine
        yield machines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--image", default="slim")
    chosen = parser.parse_args()
    report = Report("Drivers side by side")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(chosen.rounds, chosen.image, report))
    report.show()
    raise SystemExit(0 if report.good else 1)


if __name__ == "__main__":
    main()
