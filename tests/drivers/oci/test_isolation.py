"""The isolation and limits of a sandbox of the embedded driver, tried from inside."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest

from cubicle.drivers.common.hidden import SHOWN_PROC
from cubicle.drivers.oci import disk, disk_watches, host
from cubicle.drivers.oci.config import TCP_BYTES
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.driver import OciDriver
from cubicle.drivers.oci.process import ended
from cubicle.images.store import SUBUID_START
from cubicle.machine.errors import Gone
from cubicle.sandbox.driver import State
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
    monkeypatch.setattr(disk_watches, "_WATCH_SECONDS", 0.1)
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
    await said(driver, "one", "dd if=/dev/urandom of=/tmp/filler bs=1M count=40; sync -f /tmp")
    full = image.stat().st_blocks
    await said(driver, "one", "rm /tmp/filler; sync -f /tmp")
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
        ("test ! -d /sys/fs/cgroup/memory || mkdir /sys/fs/cgroup/memory/x; mkdir /sys/fs/cgroup/y", "cgroup/y"),
        ("mkfifo /sys/fs/cgroup/cpu.stat || echo 1 > /sys/fs/cgroup/memory.max", "memory.max"),
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


SIGNALS = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {"aarch64": 138, "x86_64": 129}[os.uname().machine]
forged = (ctypes.c_int * 32)(signal.SIGTERM, 0, -1)  # as if process 0 had sent it
while True:
    libc.kill(1, signal.SIGTERM)
    libc.syscall(number, 1, signal.SIGTERM, forged)
"""


async def test_commands_cannot_end_the_guest_while_it_starts_others(driver):
    await driver.start("one", None)
    process = await first_process(driver, "one")
    async with machine_of(driver, "one") as machine:
        await machine.output(("sh", "-c", 'python3 -S -E -c "$0" >/dev/null 2>&1 &', SIGNALS))
        for _ in range(50):
            _, output = await machine.output("kill -l 15; grep SigBlk /proc/self/status")
            assert output.split() == [b"TERM", b"SigBlk:", b"0000000000000000"]
    assert await first_process(driver, "one") == process
    guest = os.pidfd_open(process.pid)
    try:
        signal.pidfd_send_signal(guest, signal.SIGTERM)
        assert await ended(guest, 60)
    finally:
        os.close(guest)


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


def keys_of(user: int) -> int:
    """How many kernel keys the host counts for a user, of the 200 that one may have."""
    for line in Path("/proc/key-users").read_text().splitlines():
        found, _, counts, *_ = line.replace(":", " ").split()
        if int(found) == user:
            return int(counts.split("/")[0])
    return 0


async def test_a_sandbox_takes_a_few_keys_of_its_own_user_and_reaches_none(driver):
    names = ("one", "two", "three", "four", "five")
    await asyncio.gather(*(driver.start(name, None) for name in names))
    runs = [await asyncio.to_thread(driver._records.home(name).run) for name in names]
    assert len({run.first_id for run in runs}) == len(names)
    assert all(keys_of(run.first_id) < 10 for run in runs)
    async with machine_of(driver, "one") as machine:
        _, output = await machine.output(["python3", "-c", KEYCTL])
        assert output == b"Operation not permitted\n"


async def test_what_the_host_shows_of_itself_in_proc_and_sys_is_hidden(driver):
    await driver.start("one", None)
    found = set((await said(driver, "one", "ls /proc")).split())
    visible = {name for name in found - SHOWN_PROC if not name.isdigit()}
    look = "for n in %s; do [ -d /proc/$n ] && ls /proc/$n || head -c 100 /proc/$n; done 2>/dev/null"
    assert await said(driver, "one", look % " ".join(visible)) == ""
    kept = await said(driver, "one", "find /sys -path /sys/fs/cgroup -prune -o -name block -print -o -name ext4 -print")
    assert kept == ""
    assert set((await said(driver, "one", "ls /sys /sys/fs")).split()) <= {
        "/sys:",
        "/sys/fs:",
        "devices",
        "fs",
        "kernel",
        "cgroup",
    }
    assert int(await said(driver, "one", "cat /sys/devices/system/cpu/online | wc -c")) > 0


async def test_buffers_of_tcp_have_a_limit_of_their_own_where_memory_does_not_count_them(driver):
    await driver.start("one", None)
    group = host.CGROUPS / "memory" / driver._place.cgroup.lstrip("/") / "one"
    limit = group / "memory.kmem.tcp.limit_in_bytes"
    if not limit.exists():
        pytest.skip("the limit of memory counts them: cgroup version 2")
    assert int(limit.read_text()) == TCP_BYTES


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (
            "chromium --headless --no-sandbox --disable-gpu --dump-dom 'data:text/html,<p>shown' 2>/dev/null",
            "<p>shown</p>",
        ),
        ('node -e \'new (require("worker_threads").Worker)("console.log(6*7)", {eval: true})\'', "42"),
        ("tmux new-session -d -s work 'sleep 9' && tmux ls", "work: 1 windows"),
        ("python3 -c 'import socket; print(socket.if_nameindex())'", "[(1, 'lo')]"),
        ("node -e 'console.log(Object.keys(os.networkInterfaces()), os.cpus().length > 0)'", "[ 'lo' ] true"),
        ("python3 -m venv ~/v && ~/v/bin/pip --version", "/v/lib/python"),
        ("apt-get -o Debug::NoLocking=1 -s install -y bash 2>&1 | head -1; dpkg -l bash | tail -1", "bash"),
        ("git init -q /tmp/r && cd /tmp/r && git status --short --branch", "No commits yet"),
        ("python3 -c 'import multiprocessing as m; print(sum(m.Pool(2).map(abs, [-1, -2])))'", "3"),
        (
            "(ttyd -p 7681 bash & curl -s --retry 60 --retry-delay 1 --retry-connrefused -w '%{http_code}' -o /dev/null "
            "127.0.0.1:7681; kill %1) 2>/dev/null",
            "200",
        ),
    ],
    ids=["chromium", "node", "tmux", "netlink", "interfaces", "pip", "apt", "git", "multiprocessing", "ttyd"],
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
