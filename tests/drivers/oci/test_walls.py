"""The walls and limits of a sandbox of the embedded driver, tried from inside."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from cubicle.drivers.oci import disk
from cubicle.drivers.oci import driver as oci_driver
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.driver import OciDriver
from cubicle.drivers.oci.images import SUBUID_START
from cubicle.sandbox.driver import State
from cubicle.sandbox.line import Gone
from tests.drivers.oci.conftest import (
    SMALL,
    eventually,
    first_process,
    machine_of,
    said,
    state_of,
)

pytestmark = [pytest.mark.anyio, pytest.mark.oci]


async def test_the_disk_limit_holds_for_everything_a_sandbox_writes(driver):
    await driver.start("one", None)
    for folder in ("/tmp", "/home/assistant", "/mnt/user-data/outputs"):
        answer = await said(
            driver, "one", f"dd if=/dev/zero of={folder}/filler bs=1M count=100 2>&1; rm {folder}/filler"
        )
        assert "No space left on device" in answer


async def test_where_nothing_else_limits_disks_a_watchdog_does(make_driver, monkeypatch):
    monkeypatch.setattr(disk, "probe", lambda folder: DiskMode.WATCHDOG)
    monkeypatch.setattr(oci_driver, "_WATCH_SECONDS", 0.1)
    async with make_driver() as driver:
        assert driver.disk_mode is DiskMode.WATCHDOG
        await driver.start("one", None)
        process = await first_process(driver, "one")
        await said(driver, "one", "echo kept > ~/note")
        with pytest.raises(Gone):
            await said(driver, "one", "dd if=/dev/zero of=/tmp/filler bs=1M count=100; sleep 100")
        await eventually(lambda: (driver._records.home("one").path / "run.json").exists())
        assert not await asyncio.to_thread(lambda: process.alive)
        async with asyncio.timeout(60):
            while (seen := await state_of(driver, "one")).state is not State.FAILED:
                await asyncio.sleep(0.02)
        assert "more than its 64 MiB of disk" in seen.reason


async def test_freed_space_goes_back_to_the_host(driver):
    await driver.start("one", None)
    image = driver._records.home("one").path / "disk.img"
    if not image.exists():
        pytest.skip("disks are limited by quota here")
    await said(driver, "one", "dd if=/dev/urandom of=/tmp/filler bs=1M count=40; sync")
    full = image.stat().st_blocks
    await said(driver, "one", "rm /tmp/filler; sync")
    assert not await eventually(lambda: image.stat().st_blocks > full - 20 * 2048)


async def test_a_memory_hog_dies_and_the_sandbox_lives(driver):
    await driver.start("one", None)
    async with machine_of(driver, "one") as machine:
        exit, _ = await machine.output("tail /dev/zero", timeout=60)
        assert exit.out_of_memory
        assert (await machine.output("echo alive"))[1] == b"alive\n"


async def test_processes_are_limited(driver):
    await driver.start("one", None)
    count = """
import subprocess
children = []
try:
    while len(children) < 500:
        children.append(subprocess.Popen(["sleep", "60"]))
except BlockingIOError:
    print(len(children))
"""
    async with machine_of(driver, "one") as machine:
        _, output = await machine.output(["python3", "-c", count])
        assert SMALL.pids - 10 < int(output) < SMALL.pids


async def test_commands_have_no_capabilities_and_no_network_but_loopback(driver):
    await driver.start("one", None)
    status = await said(driver, "one", "grep -E '^(CapEff|CapPrm|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status")
    fields = dict(line.split() for line in status.replace(":", "").splitlines())
    assert {fields[k] for k in ("CapEff", "CapPrm", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert (await said(driver, "one", "tail -n +3 /proc/net/dev | cut -d: -f1")).split() == ["lo"]


@pytest.mark.parametrize(
    ("attempt", "answer"),
    [
        ("touch /mnt/skills/x", "Read-only file system"),
        ("touch /mnt/user-data/uploads/x", "Read-only file system"),
        ("ls /run/cubicle", "Permission denied"),
        ("cat /proc/1/environ", "Permission denied"),
        ("ls /proc/1/fd/", "Permission denied"),
        ("ls /proc/1/root/", "Permission denied"),
        ("unshare -U true", "not permitted"),
        ("echo 1 > /proc/sys/kernel/core_pattern", "Read-only file system"),
        ("mkdir /sys/fs/cgroup/memory/x || mkdir /sys/fs/cgroup/x", "Read-only file system"),
        ("mknod /tmp/disk b 7 0", "not permitted"),
    ],
)
async def test_a_wall_holds(driver, attempt, answer):
    await driver.start("one", None)
    assert answer in await said(driver, "one", f"({attempt}) 2>&1")


async def test_commands_cannot_end_the_guest(driver):
    await driver.start("one", None)
    process = await first_process(driver, "one")
    await said(driver, "one", "for signal in $(seq 64); do kill -$signal 1; done; kill -9 -1")
    assert await said(driver, "one", "echo alive") == "alive"
    assert await first_process(driver, "one") == process


async def test_device_nodes_of_the_host_keep_their_owner(driver):
    await driver.start("one", None)
    await driver.stop("one")
    for device in ("null", "zero", "random", "urandom", "full", "tty"):
        about = os.stat(f"/dev/{device}")
        assert stat.S_ISCHR(about.st_mode)
        assert about.st_uid == 0


KEYCTL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
number = {"aarch64": 219, "x86_64": 250}[os.uname().machine]
print(libc.syscall(number, 0, -3, 0) == -1 and os.strerror(ctypes.get_errno()))
"""


def keys_of_sandboxes():
    """How many kernel keys the host counts for the root user of sandboxes."""
    for line in Path("/proc/key-users").read_text().splitlines():
        user, _, counts, *_ = line.replace(":", " ").split()
        if int(user) == SUBUID_START:
            return int(counts.split("/")[0])
    return 0


async def test_sandboxes_take_none_of_the_few_keys_that_a_user_may_have(driver):
    before = keys_of_sandboxes()
    names = ("one", "two", "three", "four", "five")
    await asyncio.gather(*(driver.start(name, None) for name in names))
    # Not "none more": the count is the whole machine's, and other tests run beside this one.
    assert keys_of_sandboxes() < before + len(names)
    async with machine_of(driver, "one") as machine:
        _, output = await machine.output(["python3", "-c", KEYCTL])
        assert output == b"Operation not permitted\n"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (
            "chromium --headless --no-sandbox --disable-gpu --dump-dom 'data:text/html,<p>shown' 2>/dev/null",
            "<p>shown</p>",
        ),
        ('node -e \'new (require("worker_threads").Worker)("console.log(6*7)", {eval: true})\'', "42"),
        ("tmux new-session -d -s work 'sleep 9' && tmux ls", "work: 1 windows"),
        ("git init -q /tmp/r && cd /tmp/r && git status --short --branch", "No commits yet"),
        ("python3 -c 'import multiprocessing as m; print(sum(m.Pool(2).map(abs, [-1, -2])))'", "3"),
        (
            "(ttyd -p 7681 bash & curl -s --retry 60 --retry-delay 1 --retry-connrefused -w '%{http_code}' -o /dev/null "
            "127.0.0.1:7681; kill %1) 2>/dev/null",
            "200",
        ),
    ],
    ids=["chromium", "node", "tmux", "git", "multiprocessing", "ttyd"],
)
async def test_the_tools_of_the_standard_image_work_behind_the_walls(tmp_path, store, standard, command, answer):
    driver = OciDriver(tmp_path / "data", store, standard.digest, SUBUID_START)
    await driver.open()
    try:
        await driver.start("one", None)
        assert answer in await said(driver, "one", command, timeout=200)
    finally:
        await driver.delete("one")
        await driver.close()
