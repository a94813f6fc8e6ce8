"""What every driver promises, in the words of the Driver protocol."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal

import pytest

from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import Gone, NotRunning, StartFailed
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver, State
from cubicle.sandbox.trash import TrashNote
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.makers import Maker
from tests.drivers.sight import gone_from_host, guest_on_host, guest_sign, in_gvisor, seen_on_host

OWNER = "a" * 32
OTHER = "b" * 32


async def say(machine: Machine, command: str) -> str:
    exit, output = await machine.output(command, timeout=60)
    assert exit.code == 0, output
    return output.decode()


async def states(driver: Driver) -> dict[str, State]:
    return {seen.name: seen.state for seen in await driver.list()}


async def test_a_new_sandbox_answers_at_once(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    assert await say(machine, "echo hello") == "hello\n"
    machine.close()


async def test_a_driver_can_do_what_its_capabilities_say(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    can = driver.capabilities
    assert (driver.uploads(name) is not None) == can.upload_folder
    namespace = await driver.network(name)
    assert (namespace is not None) == can.network_namespace
    if namespace is not None:
        os.close(namespace)
    machine = await connect(driver, name)
    assert (await machine.hello()).hands == can.fd_passing
    machine.close()
    host = await driver.host()
    assert host.kernel or can.remote
    assert not (can.remote and host.here)


async def test_starting_twice_is_starting_once(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    await say(machine, "touch /tmp/mark")
    await driver.start(name, OWNER)
    assert await say(machine, "ls /tmp/mark") == "/tmp/mark\n"
    machine.close()


async def test_two_connections_reach_one_guest(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    first, second = await connect(driver, name), await connect(driver, name)
    await say(first, "echo 1 > ~/one")
    assert await say(second, "cat ~/one") == "1\n"
    first.close()
    assert await say(second, "cat ~/one") == "1\n"
    second.close()


async def test_files_and_owner_survive_a_stop(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    await say(machine, "echo kept > ~/home; echo kept > /mnt/user-data/outputs/out")
    await machine.write("/mnt/user-data/uploads/up", b"kept", as_root=True)
    machine.close()
    await driver.stop(name)
    assert await states(driver) == {name: State.STOPPED}
    with pytest.raises(NotRunning):
        await driver.connect(name)
    await driver.start(name, OWNER)
    assert [seen.owner for seen in await driver.list()] == [OWNER]
    assert set(await driver.names()) == {seen.name for seen in await driver.list()}
    machine = await connect(driver, name)
    assert await say(machine, "cat ~/home /mnt/user-data/*/*") == "kept\nkept\nkept"
    machine.close()


async def test_a_stop_ends_every_process(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    span = str(secrets.randbelow(10**9) + 10**6)
    await say(machine, f"setsid sleep {span} >/dev/null 2>&1 &")
    # In gVisor a process of the sandbox is none of the host's: all of them are the one process that plays the kernel.
    sign = await guest_sign(driver, name) if await in_gvisor(machine) else span
    assert await seen_on_host(sign)
    await driver.stop(name)
    # What an engine keeps beside a container bears its name, too, and goes when the engine has the time.
    assert await gone_from_host(sign, 0 if sign == span else 60)
    with pytest.raises(Gone):
        await machine.ping()
    machine.close()


async def test_stopping_what_is_not_there_is_nothing(driver: Driver) -> None:
    await driver.stop(new_name())
    await driver.delete(new_name())
    assert await driver.list() == []
    assert not set(await driver.names())


async def test_deleting_leaves_nothing(driver: Driver, make_driver: Maker) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    await driver.delete(name)
    assert await driver.list() == []
    again = new_name()
    await driver.start(again, OWNER)
    machine = await connect(driver, again)
    assert await say(machine, "ls -A /mnt/user-data/outputs /mnt/user-data/uploads | grep -v : || true") in ("", "\n")
    machine.close()


async def test_a_blank_one_becomes_somebodys_without_a_restart(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, None)
    assert [seen.owner for seen in await driver.list()] == [None]
    machine = await connect(driver, name)
    await say(machine, "sleep 300 >/dev/null 2>&1 & echo $! > ~/pid")
    await driver.start(name, OWNER)
    assert [seen.owner for seen in await driver.list()] == [OWNER]
    await say(machine, "kill -0 $(cat ~/pid)")
    machine.close()


async def test_an_owner_has_one_sandbox(driver: Driver) -> None:
    first, second = new_name(), new_name()
    await driver.start(first, OWNER)
    with pytest.raises(StartFailed):
        await driver.start(second, OWNER)


async def test_sandboxes_do_not_see_each_other(driver: Driver) -> None:
    names = new_name(), new_name()
    await asyncio.gather(*(driver.start(name, owner) for name, owner in zip(names, (OWNER, OTHER), strict=True)))
    one, two = [await connect(driver, name) for name in names]
    await say(one, "echo secret > ~/secret; echo secret > /tmp/secret; sleep 777 >/dev/null 2>&1 &")
    assert await say(two, "ls ~/secret /tmp/secret 2>/dev/null; pgrep -x sleep || true") == ""
    one.close()
    two.close()


async def test_another_driver_object_adopts_what_runs(driver: Driver, make_driver: Maker) -> None:
    name, blank = new_name(), new_name()
    await driver.start(name, OWNER)
    await driver.start(blank, None)
    machine = await connect(driver, name)
    await say(machine, "sleep 300 >/dev/null 2>&1 & echo $! > ~/pid")
    machine.close()
    second = make_driver()
    await second.open()
    found = {seen.name: (seen.owner, seen.state) for seen in await second.list()}
    assert found == {name: (OWNER, State.RUNNING), blank: (None, State.RUNNING)}
    machine = await connect(second, name)
    await say(machine, "kill -0 $(cat ~/pid)")
    machine.close()
    await second.delete(name)
    await second.delete(blank)
    assert await second.list() == []
    await second.close()


async def test_a_killed_guest_is_seen_and_can_be_started_anew(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    await say(machine, "echo kept > ~/kept")
    pid = await guest_on_host(driver, machine)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        await machine.gone()
    with pytest.raises(Gone):
        await machine.ping()
    machine.close()
    async with asyncio.timeout(60):
        while (await states(driver))[name] is State.RUNNING:
            await asyncio.sleep(0.02)
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    assert await say(machine, "cat ~/kept") == "kept\n"
    machine.close()


async def test_a_stopped_guest_runs_on_when_it_is_resumed(driver: Driver) -> None:
    name = new_name()
    assert not await driver.resume(name)
    if not driver.capabilities.resumes:
        return
    await driver.start(name, None)
    machine = await connect(driver, name)
    assert not await driver.resume(name)
    os.kill(await guest_on_host(driver, machine), signal.SIGSTOP)
    async with asyncio.timeout(60):
        while not await driver.resume(name):  # the signal takes a moment
            await asyncio.sleep(0.02)
    await machine.ping()
    machine.close()


async def test_an_idle_sandbox_is_frozen_until_it_is_resumed(driver: Driver) -> None:
    name = new_name()
    assert not await driver.freeze(name)
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    await say(machine, "echo kept > ~/kept")
    assert await driver.freeze(name) == driver.capabilities.freezes
    if driver.capabilities.freezes:
        assert [(seen.state, seen.frozen) for seen in await driver.list()] == [(State.RUNNING, True)]
        with pytest.raises(Gone):
            await machine.ping(0.3)
        assert await driver.freeze(name)
        assert await driver.resume(name)
    assert not await driver.resume(name)
    assert not any(seen.frozen for seen in await driver.list())
    assert await say(machine, "cat ~/kept") == "kept\n"
    machine.close()


async def test_a_sandbox_in_which_a_program_runs_is_not_frozen(driver: Driver) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    await say(machine, "setsid sh -c 'sleep 1; echo done > ~/done' >/dev/null 2>&1 &")
    assert not await driver.freeze(name)
    await say(machine, "until [ -s ~/done ]; do sleep 0.05; done")
    machine.close()


async def test_a_frozen_sandbox_answers_whoever_connects_to_it(driver: Driver, make_driver: Maker) -> None:
    """The service may have been killed: the next one knows nothing of it."""
    name = new_name()
    await driver.start(name, OWNER)
    (await connect(driver, name)).close()
    assert await driver.freeze(name) == driver.capabilities.freezes
    second = make_driver()
    await second.open()
    assert await states(second) == {name: State.RUNNING}
    link = await GuestLink.over(await second.connect(name))
    assert await link.answers(60)
    link.close()
    await second.close()


@pytest.mark.parametrize("end", ["stop", "delete", "discard"])
async def test_a_frozen_sandbox_can_be_ended(driver: Driver, end: str) -> None:
    name = new_name()
    await driver.start(name, OWNER)
    machine = await connect(driver, name)
    assert await driver.freeze(name) == driver.capabilities.freezes
    ending = driver.discard(name, TrashNote(None, "test", 0.0)) if end == "discard" else getattr(driver, end)(name)
    async with asyncio.timeout(60):
        await ending
        await machine.gone()
    assert (await states(driver)).get(name) is (State.STOPPED if end == "stop" else None)
    machine.close()


async def test_many_start_at_once(driver: Driver) -> None:
    names = [new_name() for _ in range(8)]
    await asyncio.gather(*(driver.start(name, f"{i:032x}") for i, name in enumerate(names)))
    machines = [await connect(driver, name) for name in names]
    await asyncio.gather(*(say(machine, f"echo {machine.name} > ~/name") for machine in machines))
    told = await asyncio.gather(*(say(machine, "cat ~/name") for machine in machines))
    assert [text.strip() for text in told] == names
    for machine in machines:
        machine.close()
