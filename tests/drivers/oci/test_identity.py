"""To the host's kernel each sandbox is somebody of its own, and its files are its own all the same."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from cubicle.drivers.oci import id_ranges, mounts, namespaces, runtimes
from cubicle.drivers.oci.driver import OciDriver
from cubicle.drivers.oci.id_ranges import first_id, is_own
from cubicle.drivers.oci.namespaces import NamespaceMaker, NamespaceSpec, for_files, for_sandbox
from cubicle.images.store import SUBUID_START
from cubicle.sandbox.driver import SandboxLimits
from tests.conftest import absent
from tests.drivers.oci.conftest import SMALL, eventually, first_process, machine_of, said

pytestmark = pytest.mark.oci

WRITE = "echo kept > ~/note; mkdir -p ~/deep/er; ln -s note ~/link; chmod 640 ~/note; echo o > /mnt/user-data/outputs/o"
READ = "cat ~/note ~/link; stat -c '%u %g %a %n' ~/note ~/deep/er / /etc/passwd /mnt/user-data/outputs/o"
READS = """kept
kept
1000 1000 640 /home/assistant/note
1000 1000 755 /home/assistant/deep/er
0 0 755 /
0 0 644 /etc/passwd
1000 1000 644 /mnt/user-data/outputs/o"""


async def host_id(driver: OciDriver, name: str) -> int:
    """The host's id of a sandbox's root."""
    process = await first_process(driver, name)
    with open(f"/proc/{process.pid}/uid_map") as file:
        inside, outside, count = file.read().split()
    assert (inside, count) == ("0", "65536")
    return int(outside)


def claims(driver: OciDriver) -> dict[int, str]:
    """What sandboxes of this driver have of the host's ranges."""
    folder, homes = driver._identities.ranges.folder, str(driver._records.sandboxes)
    found = {first_id(int(link.name)): os.readlink(link) for link in folder.iterdir() if link.is_symlink()}
    return {first: os.path.basename(home) for first, home in found.items() if os.path.dirname(home) == homes}


async def test_each_sandbox_has_ids_of_its_own_and_sees_the_usual_ones(driver):
    for name in ("one", "two"):
        await driver.start(name, None)
        await said(driver, name, WRITE)
        assert await said(driver, name, READ) == READS
    one, two = await host_id(driver, "one"), await host_id(driver, "two")
    assert is_own(one)
    assert is_own(two)
    assert one != two
    assert claims(driver) == {one: "one", two: "two"}
    stage = driver._place.stage / "one"
    found = stage.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o710, 0, one)
    await driver.stop("one")
    assert claims(driver) == {two: "two"}


async def test_two_services_whose_sandboxes_prefer_one_range_do_not_share_it(
    driver, tmp_path, store, base, monkeypatch
):
    monkeypatch.setattr(id_ranges, "_preferred", lambda home: 7)
    other = OciDriver(tmp_path / "other", store, base.digest, SUBUID_START, limits=SMALL)
    await other.open()
    try:
        await driver.start("one", None)
        await other.start("one", None)
        assert await host_id(driver, "one") != await host_id(other, "one")
    finally:
        await other.delete("one")
        await other.close()


async def test_a_chat_of_the_shared_range_gets_its_own_with_its_files(make_driver, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(mounts, "attach_idmapped", _unsupported)
        async with make_driver(keep=True) as driver:
            await driver.start("one", "owner")
            assert await host_id(driver, "one") == SUBUID_START
            await said(driver, "one", WRITE)
            await driver.stop("one")
    async with make_driver() as driver:
        await driver.start("one", "owner")
        assert is_own(await host_id(driver, "one"))
        assert await said(driver, "one", READ) == READS
        assert await said(driver, "one", "echo more >> ~/note; rm ~/link; touch ~/deep/er/x; tail -1 ~/note") == "more"


async def test_without_mounts_that_show_other_ids_sandboxes_run_on_the_shared_range(make_driver, monkeypatch, caplog):
    monkeypatch.setattr(mounts, "attach_idmapped", _unsupported)
    async with make_driver() as driver:
        assert "share one range of user ids" in caplog.text
        for name in ("one", "two"):
            await driver.start(name, None)
            await said(driver, name, WRITE)
            assert await said(driver, name, READ) == READS
            assert await host_id(driver, name) == SUBUID_START
        assert sorted(claims(driver).values()) == ["one", "two"]  # these are charged for what each of them takes


async def test_gvisor_runs_with_ids_of_its_own_and_without(make_driver, monkeypatch, tmp_path):
    if not await asyncio.to_thread(runtimes.find, "runsc", tmp_path):
        absent("needs runsc: scripts/packages test")
    async with make_driver(runtime="runsc", limits=SandboxLimits()) as driver:
        await driver.start("one", None)
        await said(driver, "one", WRITE)
        assert await said(driver, "one", READ) == READS
        assert is_own(await host_id(driver, "one"))
        await driver.stop("one")
        monkeypatch.setattr(mounts, "attach_idmapped", _unsupported)
        driver._assembly = await asyncio.to_thread(driver._assemble)
        await driver.start("one", None)
        assert await said(driver, "one", READ) == READS
        assert await host_id(driver, "one") == SUBUID_START


async def test_what_a_killed_service_claimed_is_given_back(make_driver):
    async with make_driver(keep=True) as driver:
        await driver.start("up", "owner")
        own = await host_id(driver, "up")
        claimed = driver._identities.ranges.claim(driver._records.home("half").path)
        assert claims(driver) == {own: "up", claimed: "half"}
    async with make_driver() as driver:
        assert claims(driver) == {own: "up"}


async def test_no_path_of_the_host_is_in_the_table_of_mounts(driver):
    await driver.start("one", None)
    table = await said(driver, "one", "cat /proc/self/mounts")
    assert "lowerdir=/proc/self/fd/" in table
    for path in (driver._records.root, driver._place.stage, driver._bases.folder):
        assert str(path) not in table


async def test_what_only_a_start_needs_does_not_stay_mounted(driver):
    await driver.start("one", None)
    assert sorted(target.name for target in mounts.below(driver._place.stage)) == ["disk", "rootfs"]


async def test_uploads_of_the_host_belong_to_root_of_the_sandbox(driver):
    await driver.start("one", None)
    folder = driver.uploads("one")
    assert folder is not None
    draft = folder.draft("from/host.txt")
    draft.write([b"hello"])
    draft.publish()
    assert await said(driver, "one", "cd /mnt/user-data/uploads; stat -c '%u %g' from from/host.txt") == "0 0\n0 0"


def test_a_maker_of_namespaces_that_was_killed_is_replaced():
    maker = NamespaceMaker()
    try:
        closed(maker.make(for_files(SUBUID_START, first_id(1))))
        assert maker._process is not None
        os.kill(maker._process.pid, signal.SIGKILL)
        maker._process.wait()
        closed(maker.make(for_sandbox(first_id(1), first_id(1)), for_files(SUBUID_START, first_id(1))))
        with pytest.raises(OSError, match=r"."):
            maker.make(for_files(SUBUID_START, first_id(1)), NamespaceSpec(((0, 2**32 - 1, 65536),)))
        closed(maker.make(for_files(SUBUID_START, first_id(1))))  # one refusal is not the end of it
    finally:
        maker.close()


def test_a_request_that_is_given_up_answers_no_later_one(monkeypatch):
    """The namespaces of one sandbox would be another's: both would have the same ids on the host."""
    maker = NamespaceMaker()
    begin = NamespaceMaker._begin

    def begin_held_up(self):
        channel = begin(self)
        self._process.send_signal(signal.SIGSTOP)
        return channel

    try:
        with monkeypatch.context() as patched:
            patched.setattr(namespaces, "_SECONDS", 0.5)
            patched.setattr(NamespaceMaker, "_begin", begin_held_up)
            with pytest.raises(TimeoutError):
                maker.make(for_sandbox(first_id(1), first_id(1)))
        if maker._process is not None:
            maker._process.send_signal(signal.SIGCONT)
        made = maker.make(for_sandbox(first_id(2), first_id(2)))
        found = mapped(made[0])
        closed(made)
        assert found == [[0, first_id(2), 65536]]
    finally:
        maker.close()


def test_a_maker_that_was_closed_works_again():
    maker = NamespaceMaker()
    for _ in range(2):
        with maker.making(for_files(SUBUID_START, first_id(1))) as made:
            (descriptor,) = made.result()
            os.fstat(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        maker.close()


def test_a_maker_ends_with_its_service():
    maker = NamespaceMaker()
    closed(maker.make(for_files(SUBUID_START, first_id(1))))
    process = maker._process
    assert process is not None
    assert maker._channel is not None
    maker._channel.close()
    assert process.wait(30) == 0
    maker.close()


async def test_the_start_after_a_cut_off_one_works(driver, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(mounts, "overlay", _unsupported)
        with pytest.raises(Exception, match="could not be started"):
            await driver.start("one", None)
    assert await eventually(lambda: mounts.below(driver._place.stage)) == []
    assert claims(driver) == {}
    await driver.start("one", None)
    async with machine_of(driver, "one") as machine:
        assert (await machine.output("echo here"))[1] == b"here\n"


def mapped(namespace: int) -> list[list[int]]:
    """The ids of a user namespace."""
    argv = ["nsenter", f"--user=/proc/self/fd/{namespace}", "cat", "/proc/self/uid_map"]
    text = subprocess.run(argv, pass_fds=[namespace], capture_output=True, text=True, check=True).stdout
    return [[int(word) for word in line.split()] for line in text.splitlines()]


def closed(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _unsupported(*args: Path) -> None:
    raise OSError(errno.EINVAL, "not on this file system")
