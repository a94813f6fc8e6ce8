"""The service is killed with kill -9: sandboxes live on, what was half-made goes, no file is lost."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from cubicle.drivers.common.instance import instance_of
from cubicle.drivers.oci.driver import RUN_DIR
from cubicle.sandbox.driver import State
from tests.drivers.oci.conftest import cgroups, eventually, machine_of, mounted, said
from tests.support import remains

pytestmark = [pytest.mark.anyio, pytest.mark.oci]

SERVICE = """
import asyncio, sys
from pathlib import Path
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.sandbox.driver import SandboxLimits
from cubicle.sandbox.warm_pool import connect

async def main(data, images, image):
    limits = SandboxLimits(memory_bytes=256 * 1024**2, cpus=1.0, pids=64, disk_bytes=64 * 1024**2)
    driver = OciDriver(Path(data), ImageStore(Path(images)), image, SUBUID_START, limits=limits)
    await driver.open()
    for number in range(5):
        await driver.start(f"up{number}", f"owner{number}")
        machine = await connect(driver, f"up{number}")
        started = "until pgrep -x sleep > /dev/null; do :; done"
        await machine.output(f"echo {number} > ~/note; nohup sleep 300 > /dev/null 2>&1 & {started}")
    print("up", flush=True)
    await asyncio.gather(*(driver.start(f"half{number}", None) for number in range(8)))
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_killed_in_the_middle_of_starts(make_driver, tmp_path, store, base):
    arguments = (str(tmp_path / "data"), str(store.folder), base.digest)
    service = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVICE,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert service.stdout is not None
    assert await service.stdout.readline() == b"up\n"
    await asyncio.sleep(0.06)
    service.send_signal(signal.SIGKILL)
    await service.wait()
    # A runtime that was at work ends by itself, and a service takes longer to come back.
    at_work = f"{RUN_DIR / instance_of(tmp_path / 'data')}/"
    assert (
        await eventually(lambda: [line for line in remains.processes(at_work) if line.split()[1].endswith("runc")])
        == []
    )
    async with make_driver() as driver:
        seen = {s.name: s for s in await driver.list()}
        for number in range(5):
            assert seen[f"up{number}"].state is State.RUNNING
            assert seen[f"up{number}"].owner == f"owner{number}"
            assert await said(driver, f"up{number}", "cat ~/note; pgrep -c sleep") == f"{number}\n1"
        up = {name for name, s in seen.items() if s.state is State.RUNNING}
        assert {target.split("/")[-2] for target in mounted(driver)} == up
        assert await eventually(lambda: {c.split("/")[-1] for c in cgroups(driver)} - up) == set()
        for number in range(8):
            await driver.start(f"half{number}", None)
            async with machine_of(driver, f"half{number}") as machine:
                assert (await machine.output("echo here"))[1] == b"here\n"
