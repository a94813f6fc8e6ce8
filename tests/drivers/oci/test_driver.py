"""What the embedded driver does beyond the contract that all drivers share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import time
from dataclasses import replace

import pytest

from cubicle.drivers.oci.assembly import Assembly
from cubicle.drivers.oci.disk import DiskMode
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START
from cubicle.machine.errors import Gone, NotRunning, SandboxError, StartFailed, Unusable
from cubicle.machine.machine import HOME
from cubicle.sandbox.driver import State
from cubicle.sandbox.warm_pool import connect
from tests.conftest import absent
from tests.drivers.oci.conftest import (
    SMALL,
    cgroups,
    eventually,
    first_process,
    machine_of,
    mounted,
    open_files,
    processes,
    said,
    state_of,
)
from tests.support.remains import children, loop_devices

pytestmark = [pytest.mark.anyio, pytest.mark.oci]
ROUNDS = 1000 if os.environ.get("CUBICLE_LONG") else 30
# Who is init on a host may take its time to fetch the dead that fell to it.
FETCHED_SECONDS = 60


async def test_files_outlive_a_stop(driver):
    await driver.start("one", None)
    await said(driver, "one", "echo kept > ~/note; echo also > /tmp/note; echo out > /mnt/user-data/outputs/note")
    await driver.stop("one")
    assert (await state_of(driver, "one")).state is State.STOPPED
    assert mounted(driver) == []
    await driver.start("one", None)
    assert await said(driver, "one", "cat ~/note /tmp/note /mnt/user-data/outputs/note") == "kept\nalso\nout"


async def test_a_new_driver_adopts_what_runs(make_driver):
    async with make_driver(keep=True) as first:
        await first.start("one", "owner")
        process = await first_process(first, "one")
    async with make_driver() as second:
        seen = await state_of(second, "one")
        assert (seen.state, seen.owner, seen.current) == (State.RUNNING, "owner", True)
        await second.start("one", "owner")
        assert await first_process(second, "one") == process
        assert await said(second, "one", "echo here") == "here"


async def test_a_blank_one_counts_as_new_only_as_long_as_a_new_one_would_be_the_same(make_driver):
    async with make_driver(keep=True) as first:
        await first.start("one", None)
    async with make_driver(keep=True) as same:
        assert (await state_of(same, "one")).current
    for other in ({"memory_bytes": 300 * 1024**2}, {"pids": 99}, {"cpus": 0.5}, {"disk_bytes": 300 * 1024**2}):
        async with make_driver(keep=True, limits=replace(SMALL, **other)) as changed:
            assert not (await state_of(changed, "one")).current
    async with make_driver() as same:
        assert (await state_of(same, "one")).current


async def test_a_stop_waits_for_no_sender_and_leaves_nothing_of_the_disk_open(driver, tmp_path):
    await driver.start("one", None)
    folder = driver.uploads("one")
    draft = await asyncio.to_thread(folder.draft, "sub/half.bin")
    whole = await asyncio.to_thread(folder.draft, "sub/whole.bin")
    await asyncio.to_thread(draft.write, [b"x" * 100_000])
    await asyncio.to_thread(whole.write, [b"y" * 100_000])
    await asyncio.to_thread(whole.publish)
    owner = await said(driver, "one", "cd /mnt/user-data/uploads && stat -c '%U %a' sub sub/whole.bin && ls -A sub")
    assert owner == "root 755\nroot 644\nwhole.bin"
    await driver.stop("one")
    assert mounted(driver) == []
    assert await eventually(lambda: loop_devices(tmp_path)) == []
    with pytest.raises(OSError, match="no longer up"):
        draft.write([b"more"])
    with pytest.raises(OSError, match="no longer up"):
        folder.draft("other")
    await driver.start("one", None)
    assert await said(driver, "one", "ls -A /mnt/user-data/uploads/sub") == "whole.bin"
    assert driver.uploads("one") is not folder


@pytest.mark.parametrize("end", ["stop", "delete"])
async def test_the_end_waits_for_no_reader_and_leaves_nothing_of_the_disk_open(driver, tmp_path, end):
    """As the fleet does it: it hangs up first."""
    await driver.start("one", None)
    machine = await connect(driver, "one")
    await machine.write(f"{HOME}/large", b"x" * 20_000_000)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        async with machine.read(f"{HOME}/large", straight=True) as read, contextlib.AsyncExitStack() as stack:
            chunks = aiter(read)
            assert await anext(chunks)
            sent = await stack.enter_async_context(machine.read(f"{HOME}/large", straight=True))
            sending = asyncio.ensure_future(sent.into(ours.fileno()))  # type: ignore[attr-defined]
            assert await asyncio.to_thread(theirs.recv, 1000)
            machine.close()
            await getattr(driver, end)("one")
            assert mounted(driver) == []
            assert await eventually(lambda: loop_devices(tmp_path)) == []
            with pytest.raises(Gone):
                await anext(chunks)
            assert not sending.done()  # whoever does not read hears of it later
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def test_an_owner_has_one_sandbox_and_a_sandbox_one_owner(driver):
    await driver.start("one", "a")
    with pytest.raises(StartFailed, match="already has another"):
        await driver.start("two", "a")
    with pytest.raises(StartFailed, match="another chat"):
        await driver.start("one", "b")
    assert [s.name for s in await driver.list()] == ["one"]
    await driver.delete("one")
    await driver.start("two", "a")
    assert (await state_of(driver, "two")).owner == "a"


async def test_a_killed_first_process_is_a_failure_in_words(driver):
    await driver.start("one", None)
    assert await (await first_process(driver, "one")).kill(60)
    seen = await state_of(driver, "one")
    assert seen.state is State.FAILED
    assert "killed" in seen.reason
    with pytest.raises(NotRunning):
        await driver.connect("one")
    await driver.start("one", None)
    assert await said(driver, "one", "echo again") == "again"


async def test_a_runtime_that_fails_leaves_nothing_and_says_why(driver, monkeypatch):
    monkeypatch.setattr(Assembly, "_write_bundle", lambda *ignored: None)
    with pytest.raises(StartFailed, match=r"(?i)no such file or directory") as failed:
        await driver.start("one", "owner")
    assert "/data/" not in str(failed.value)
    assert await driver.list() == []
    assert mounted(driver) == []
    assert list(driver._records.owners.iterdir()) == []


async def test_what_a_crash_left_half_made_is_gone_after_open(make_driver, tmp_path):
    async with make_driver(keep=True) as first:
        await first.start("whole", None)
        await first.start("unfinished", None)
        await first.start("unrecorded", None)
        (tmp_path / "data/sandboxes/unfinished/meta.json").unlink()
        (tmp_path / "data/sandboxes/unrecorded/run.json").unlink()
        (tmp_path / "data/owners/stale").symlink_to("nobody")
    async with make_driver() as second:
        states = {s.name: s.state for s in await second.list()}
        assert states == {"whole": State.RUNNING, "unrecorded": State.STOPPED}
        assert all("/whole/" in target for target in mounted(second))
        assert await eventually(lambda: [c for c in cgroups(second) if not c.endswith("/whole")]) == []
        assert list((tmp_path / "data/owners").iterdir()) == []
        assert await said(second, "whole", "echo here") == "here"


async def test_a_second_driver_beside_the_first_cleans_nothing(make_driver):
    async with make_driver() as first:
        await first.start("one", None)
        (first._records.home("one").path / "run.json").rename(first._records.root / "aside")
        async with make_driver(keep=True):
            assert mounted(first)
        (first._records.root / "aside").rename(first._records.home("one").path / "run.json")


async def test_a_very_long_data_dir_works(tmp_path, store, base):
    deep = tmp_path / ("d" * 120) / ("e,:\\ " + "f" * 100)
    driver = OciDriver(deep, store, base.digest, SUBUID_START, limits=SMALL)
    await driver.open()
    try:
        await driver.start("one", None)
        assert await said(driver, "one", "echo here") == "here"
    finally:
        await driver.delete("one")
        await driver.close()


@pytest.mark.timeout(300 if ROUNDS < 100 else 3600)
async def test_rounds_of_start_and_stop_leak_nothing(driver, tmp_path):
    async def one_round(name):
        await driver.start(name, name)
        (await driver.connect(name)).close()
        await driver.stop(name)
        await driver.start(name, None)
        await driver.delete(name)

    await one_round("warm")
    files, own, stage = open_files(), children(), sorted(driver._place.stage.rglob("*"))
    for number in range(ROUNDS):
        await one_round(f"s{number}")
    assert mounted(driver) == []
    assert await eventually(lambda: loop_devices(tmp_path)) == []
    assert await eventually(lambda: cgroups(driver)) == []
    assert await eventually(lambda: processes(driver), FETCHED_SECONDS) == []
    assert not await eventually(lambda: set(children()) - set(own))
    assert open_files() <= files
    assert sorted(driver._place.stage.rglob("*")) == stage
    for folder in (driver._records.sandboxes, driver._records.owners):
        assert os.listdir(folder) == []


async def test_whatever_of_a_sandbox_is_still_there_is_counted(driver, tmp_path):
    """The counts that say that nothing leaks see what is there."""
    assert processes(driver) == []
    await driver.start("one", None)
    await said(driver, "one", "setsid sleep 100 >/dev/null 2>&1 </dev/null &")
    assert not await eventually(lambda: not [line for line in processes(driver) if line.endswith(": sleep 100")])
    assert "guest.pyz" in " ".join(processes(driver))
    trees = {path.split("/")[4] for path in cgroups(driver)}
    assert {"memory", "pids"} < trees or trees == {"cubicle"}
    assert len(mounted(driver)) == 2
    assert loop_devices(tmp_path) or driver.disk_mode is not DiskMode.IMAGE
    own = children()
    child = await asyncio.create_subprocess_exec("sleep", "100")
    assert {line.split(":")[0] for line in set(children()) - set(own)} == {str(child.pid)}
    child.kill()
    await child.wait()
    await driver.delete("one")
    assert await eventually(lambda: processes(driver), FETCHED_SECONDS) == []


async def test_many_at_once_are_all_different(driver):
    names = [f"s{n}" for n in range(16)]
    await asyncio.gather(*(driver.start(name, name) for name in names))
    for name in names:
        await said(driver, name, f"echo {name} > ~/me")
    answers = await asyncio.gather(*(said(driver, name, "cat ~/me") for name in names))
    assert answers == names


async def test_a_missing_runtime_is_one_sentence(make_driver):
    files = open_files()
    with pytest.raises(Unusable, match=r"nosuchruntime is not installed: run `apt-get install"):
        async with make_driver(runtime="nosuchruntime"):
            pass
    assert open_files() <= files


async def test_without_root_it_says_so(monkeypatch, make_driver):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unusable, match="needs root"):
        async with make_driver():
            pass


async def test_a_name_that_is_a_path_is_refused(driver):
    with pytest.raises(SandboxError):
        await driver.start("../../etc", None)


async def test_a_cancelled_start_leaves_nothing(driver):
    began = time.monotonic()
    await driver.start("warm", None)
    whole = time.monotonic() - began
    await driver.delete("warm")
    cancelled = 0
    for part in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        task = asyncio.create_task(driver.start("one", None))
        await asyncio.sleep(part * whole)
        if task.done():
            await task  # quicker than the cancellation: it is there, and whole
            await driver.delete("one")
            whole *= part  # the first one met a busy machine
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled += 1
        assert await driver.list() == []
        assert mounted(driver) == []
        assert await eventually(lambda: cgroups(driver)) == []
    assert cancelled >= 3


async def test_gvisor_starts_answers_and_leaves_nothing(make_driver, tmp_path):
    if not shutil.which("runsc"):
        absent("needs runsc: scripts/packages test")
    async with make_driver(runtime="runsc") as driver:
        await driver.start("one", None)
        async with machine_of(driver, "one") as machine:
            assert (await machine.hello()).version
            await machine.write("/home/assistant/note", b"kept")
        await driver.stop("one")
        await driver.start("one", None)
        async with machine_of(driver, "one") as machine:
            assert await machine.read_bytes("/home/assistant/note", limit=10) == b"kept"
        await driver.delete("one")
        assert mounted(driver) == []
        assert await eventually(lambda: loop_devices(tmp_path)) == []


@pytest.mark.parametrize(("before", "after"), [("runsc", "runc"), ("runc", "crun"), ("crun", "runc")])
async def test_a_sandbox_of_another_runtime_is_still_ours(make_driver, before, after):
    for name in (before, after):
        if not shutil.which(name):
            absent(f"needs {name}: scripts/packages test")
    async with make_driver(runtime=before, keep=True) as first:
        for name in ("one", "two", "three"):
            await first.start(name, name)
    async with make_driver(runtime=after) as second:
        assert (await state_of(second, "one")).state is State.RUNNING
        assert await said(second, "one", "echo as before") == "as before"
        await second.stop("one")
        assert not (second._place.stage / "state" / before / "one").exists()
        await second.start("one", None)
        assert await said(second, "one", "echo here") == "here"
        await second.delete("two")
        os.kill((await first_process(second, "three")).pid, signal.SIGKILL)
        assert await eventually_failed(second, "three")
        await second.start("three", None)
        assert await said(second, "three", "echo again") == "again"
        for name in ("one", "three"):
            await second.delete(name)
        assert mounted(second) == []
        assert await eventually(lambda: [path for path in cgroups(second) if "trial" not in path]) == []
        assert not any((second._place.stage / "state" / before).iterdir())


async def eventually_failed(driver: OciDriver, name: str) -> bool:
    deadline = time.monotonic() + 20
    while (await state_of(driver, name)).state is not State.FAILED:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def test_the_last_driver_takes_its_folders_with_it(make_driver):
    async with make_driver(keep=True) as first, make_driver(keep=True) as second:
        await first.start("one", None)
        await second.delete("one")
        await first.close()
        assert first._place.stage.exists()
        await second.start("two", None)
        assert await said(second, "two", "echo here") == "here"
        await second.close()
        assert first._place.stage.exists()
    async with make_driver() as third:
        assert (await state_of(third, "two")).state is State.RUNNING
    assert not first._place.stage.exists()
    assert await eventually(lambda: cgroups(third)) == []
