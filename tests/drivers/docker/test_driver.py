"""What only the Docker driver does: an engine behind a network, a disk watchdog, what a crash leaves."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.docker import driver as docker_driver
from cubicle.drivers.docker.driver import DockerDriver
from cubicle.drivers.docker.engine import EngineAddress
from cubicle.images.store import ImageStore
from cubicle.isolation import runner
from cubicle.machine.errors import Gone, MachineError, SandboxError, Unusable
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream, StreamConnection
from cubicle.sandbox.driver import DriverHost, SandboxLimits, State
from cubicle.sandbox.warm_pool import connect
from cubicle.settings import load
from tests.drivers.makers import some_base

pytestmark = pytest.mark.docker
SMALL = SandboxLimits(memory_bytes=256 * 1024**2, cpus=1.0, pids=64, disk_bytes=32 * 1024**2)
Make = Callable[..., AbstractAsyncContextManager[DockerDriver]]


@pytest.fixture
def make_driver(tmp_path: Path) -> Make:
    store = ImageStore(load().image_dir)
    base = some_base(store)

    @asynccontextmanager
    async def make(keep: bool = False, **options: Any) -> AsyncIterator[DockerDriver]:
        options = {"limits": SMALL, "address": EngineAddress(load().docker_host), **options}
        image = options.pop("image", base.digest)
        driver = DockerDriver(tmp_path / "data", store, image, **options)
        await driver.open()
        try:
            yield driver
        finally:
            if not keep:
                for seen in await driver.list():
                    await driver.delete(seen.name)
            await driver.close()

    return make


@asynccontextmanager
async def over_tcp(path: str) -> AsyncIterator[str]:
    """The engine's socket at a TCP port of loopback, as an engine of another machine is reached."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        theirs, ours = await asyncio.open_unix_connection(path)
        try:
            await asyncio.gather(pump(reader, ours), pump(theirs, writer))
        except asyncio.CancelledError:
            pass
        finally:
            for end in (ours, writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        left = list(serving)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def dialled(machine: Machine, port: int) -> StreamConnection | None:
    try:
        return await machine.dial(port, straight=True)
    except MachineError:
        return None  # it is still starting


async def test_an_engine_of_another_machine_is_spoken_to_over_exec_streams(make_driver: Make) -> None:
    async with (
        over_tcp(load().docker_host.removeprefix("unix://")) as url,
        make_driver(address=EngineAddress(url)) as driver,
    ):
        assert not driver.by_socket
        await driver.start("one", "a" * 32)
        machine = await connect(driver, "one")
        assert (await machine.output("echo far"))[1] == b"far\n"
        async with machine.run(["python3", "-m", "http.server", "8123"]):
            async with asyncio.timeout(60):
                while not isinstance(stream := await dialled(machine, 8123), Stream):  # no descriptor comes this way
                    await asyncio.sleep(0.05)
            stream.close()
        await machine.write("/mnt/user-data/uploads/up", b"x" * 3_000_000, as_root=True)
        assert len(await machine.read_bytes("/mnt/user-data/uploads/up", limit=10**7)) == 3_000_000
        exit, _ = await machine.output("touch /mnt/user-data/uploads/no")
        assert exit.code != 0
        second = await connect(driver, "one")
        assert (await second.output("cat /mnt/user-data/uploads/up | wc -c"))[1].strip() == b"3000000"
        second.close()
        machine.close()
        await driver.stop("one")
        await driver.start("one", "a" * 32)
        machine = await connect(driver, "one")
        assert (await machine.output("wc -c < /mnt/user-data/uploads/up"))[1].strip() == b"3000000"
        machine.close()


async def test_the_isolation_check_says_what_it_could_not_try_on_another_machine(make_driver: Make) -> None:
    """Files, ports and sockets of this machine say nothing about one that an engine elsewhere runs on."""
    async with (
        over_tcp(load().docker_host.removeprefix("unix://")) as url,
        make_driver(address=EngineAddress(url)) as far,
    ):
        host = await far.host()
        assert not host.here
        report = await runner.prove(far, SandboxLimits(), kernel=host.kernel, here=host.here, exhaust=False)
    unchecked = {finding.attempt for finding in report.unchecked}
    assert unchecked == {"a file of the host", "a port of the host's loopback", "an abstract socket of the host"}
    assert {finding.verdict.value for finding in report.unchecked} == {"not checked"}
    assert report.missing == []
    assert (report.told()["holds"], report.told()["not_checked"]) == (False, 3)
    async with make_driver() as near:
        assert await near.host() == DriverHost(platform.release(), here=True)
        with pytest.MonkeyPatch.context() as patch:  # the service is in a container, and has the engine's socket
            patch.setattr(socket, "gethostname", lambda: "3f2a1b")
            assert not (await near.host()).here


async def test_an_engine_that_went_away_is_said_in_words_by_every_verb(make_driver: Make) -> None:
    async with make_driver() as near, AsyncExitStack() as wire:
        await near.start("one", None)
        url = await wire.enter_async_context(over_tcp(load().docker_host.removeprefix("unix://")))
        async with make_driver(keep=True, address=EngineAddress(url)) as far:
            container = await far.container_id("one")
            await wire.aclose()
            for verb in (
                far.list(),
                far.start("two", None),
                far.stop("one"),
                far.delete("one"),
                far._stop("one", container, ""),
                far._delete("one", container),
            ):
                with pytest.raises(SandboxError, match=r"^The "):
                    await verb
        assert [seen.state for seen in await near.list()] == [State.RUNNING]


async def test_what_is_over_its_disk_limit_is_stopped_and_says_why(
    make_driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_driver, "_WATCH_SECONDS", 0.3)
    async with make_driver() as driver:
        if driver.facts.disk_quota:
            pytest.skip("the engine's storage limits disks itself")
        await driver.start("one", None)
        machine = await connect(driver, "one")
        with pytest.raises(Gone):
            await machine.output("head -c 60000000 /dev/urandom > /tmp/filler; sleep 200")
        async with asyncio.timeout(60):
            while (seen := (await driver.list())[0]).state is not State.FAILED:
                await asyncio.sleep(0.1)
        assert "more than its 32 MiB of disk" in seen.reason
        machine.close()


async def test_a_memory_hog_dies_and_the_sandbox_lives(make_driver: Make) -> None:
    async with make_driver() as driver:
        await driver.start("one", None)
        machine = await connect(driver, "one")
        exit, _ = await machine.output("tail /dev/zero", timeout=60)
        assert exit.out_of_memory
        assert (await machine.output("echo alive"))[1] == b"alive\n"
        machine.close()


async def test_what_a_crash_left_half_made_is_removed(make_driver: Make) -> None:
    async with make_driver(keep=True) as driver:
        await driver.start("whole", None)
        home = driver._records.home("half")
        home.make(0)
        await driver._client.volumes.create(
            {
                "Name": f"cubicle-{driver._instance}-half-uploads",
                "Labels": {"cubicle.instance": driver._instance, "cubicle.name": "half"},
            }
        )
    async with make_driver() as driver:
        assert [seen.name for seen in await driver.list()] == ["whole"]
        assert not home.path.exists()
        listed = await driver._client.volumes.list(filters={"label": [f"cubicle.instance={driver._instance}"]})
        assert {v["Labels"]["cubicle.name"] for v in listed["Volumes"]} == {"whole"}


async def test_a_blank_one_counts_as_new_only_as_long_as_a_new_one_would_be_the_same(make_driver: Make) -> None:
    async with make_driver(keep=True) as first:
        await first.start("one", None)
    async with make_driver(keep=True, limits=replace(SMALL, pids=99)) as changed:
        assert [seen.current for seen in await changed.list()] == [False]
    async with make_driver() as same:
        assert [seen.current for seen in await same.list()] == [True]


async def test_two_services_with_two_folders_do_not_meet(make_driver: Make, tmp_path: Path) -> None:
    store = ImageStore(load().image_dir)
    base = await asyncio.to_thread(some_base, store)
    other = DockerDriver(
        tmp_path / "other", store, base.digest, limits=SMALL, address=EngineAddress(load().docker_host)
    )
    await other.open()
    async with make_driver() as driver:
        await driver.start("one", "a" * 32)
        await other.start("one", "a" * 32)
        await other.delete("one")
        assert [seen.name for seen in await driver.list()] == ["one"]
    await other.close()


async def test_no_engine_is_said_in_words(tmp_path: Path) -> None:
    driver = DockerDriver(tmp_path, ImageStore(tmp_path), "slim", address=EngineAddress("unix:///nowhere.sock"))
    with pytest.raises(Unusable, match="No Docker engine answers"):
        await driver.open()


async def test_an_image_that_the_engine_has_is_enough(make_driver: Make, tmp_path: Path) -> None:
    """As in docker compose, where no image is built beside the service."""
    async with make_driver() as driver:
        reference = driver._image.reference
    lone = DockerDriver(
        tmp_path / "lone",
        ImageStore(tmp_path / "none"),
        reference,
        limits=SMALL,
        address=EngineAddress(load().docker_host),
    )
    await lone.open()
    try:
        await lone.start("one", None)
        machine = await connect(lone, "one")
        assert (await machine.output("id -un; pwd"))[1] == b"assistant\n/home/assistant\n"
        machine.close()
    finally:
        await lone.delete("one")
        await lone.close()


async def test_a_disk_limit_that_the_storage_does_not_take_is_left_to_the_watchdog(
    make_driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine on XFS does not say whether its quota is switched on: a container that is never started shows it."""
    monkeypatch.setattr(docker_driver.engine, "_has_quota", lambda info: True)  # type: ignore[attr-defined]
    async with make_driver() as driver:
        async with asyncio.timeout(60):  # a test beside this one may be trying the same
            while [c for c in await driver._client.containers.list(all=1) if c._container["Command"] == "true"]:
                await asyncio.sleep(0.2)
        await driver.start("one", None)
        machine = await connect(driver, "one")
        total = (await machine.stats()).disk_total
        machine.close()
        if driver.facts.disk_quota:
            assert isinstance(total, int)
            assert total <= SMALL.disk_bytes * 1.01
        else:
            assert driver._watch is not None


async def test_a_read_only_root_keeps_home_and_outputs_and_nothing_else(
    make_driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_driver, "_WATCH_SECONDS", 0.5)
    async with make_driver(read_only=True) as driver:
        await driver.start("one", None)
        machine = await connect(driver, "one")
        _, mounts = await machine.output("cat /proc/mounts")
        (root,) = [line.split() for line in mounts.decode().splitlines() if line.split()[1] == "/"]
        assert root[3].split(",")[0] == "ro"
        exit, said = await machine.output(
            "for d in ~ /tmp /var/tmp /mnt/user-data/outputs; do echo x > $d/note || exit 1; done; ls /run/cubicle"
        )
        assert b"Permission denied" in said
        assert exit.code == 2
        await machine.write("/mnt/user-data/uploads/up", b"given", as_root=True)
        machine.close()
        await driver.stop("one")
        await driver.start("one", None)
        machine = await connect(driver, "one")
        _, kept = await machine.output("ls ~/note /tmp/note /var/tmp/note /mnt/user-data/*/* 2>/dev/null")
        assert kept.split() == [b"/home/assistant/note", b"/mnt/user-data/outputs/note", b"/mnt/user-data/uploads/up"]
        with pytest.raises(Gone):
            await machine.output("head -c 60000000 /dev/urandom > ~/filler; sleep 200")
        async with asyncio.timeout(60):
            while (seen := (await driver.list())[0]).state is not State.FAILED:
                await asyncio.sleep(0.1)
        assert "of disk" in seen.reason
        machine.close()


@pytest.mark.parametrize("read_only", [False, True])
async def test_an_image_that_knows_nothing_of_us_opens_no_second_way_to_the_uploads(
    make_driver: Make, read_only: bool
) -> None:
    async with make_driver() as driver:
        bare = "cubicle-sandbox:bare-test"
        recipe = f"FROM {driver._image.reference}\nUSER root\nRUN rm -rf /run/cubicle\n"
        build = ["docker", "build", "--network", "none", "-t", bare, "-"]
        await asyncio.to_thread(
            subprocess.run, build, input=recipe.encode(), check=True, timeout=240, capture_output=True
        )
    async with make_driver(image=bare, read_only=read_only) as driver:
        await driver.start("one", None)
        machine = await connect(driver, "one")
        exit, said = await machine.output("ls /run/cubicle; echo x > /run/cubicle/uploads/x")
        machine.close()
    assert said.count(b"Permission denied") == 2
    assert exit.code != 0


async def test_the_volumes_of_a_chat_outlive_its_container(make_driver: Make) -> None:
    """Somebody tidies up with `docker container prune`: what people uploaded stays theirs."""
    async with make_driver(keep=True) as driver:
        await driver.start("one", "owner")
        machine = await connect(driver, "one")
        await machine.write("/mnt/user-data/uploads/note", b"kept", as_root=True)
        machine.close()
        await driver.start("blank", None)
        for name in ("one", "blank"):
            subprocess.run(["docker", "rm", "-f", await driver.container_id(name)], check=True, capture_output=True)
    async with make_driver() as driver:
        (seen,) = await driver.list()
        assert (seen.name, seen.owner, seen.state) == ("one", "owner", State.STOPPED)
        assert await driver.find("owner", "one") == "one"
        await driver.start("one", "owner")
        machine = await connect(driver, "one")
        assert await machine.read_bytes("/mnt/user-data/uploads/note", limit=100) == b"kept"
        machine.close()
