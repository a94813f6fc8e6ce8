"""A service and a guest of neighbouring versions work together: chats stay up while the service is upgraded."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers import memory
from cubicle.drivers.memory import MemoryDriver
from cubicle.guest import bundle, operations, wire
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import Machine
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from tests.isolation.test_hostile_guest import FakeGuest, faced, frame
from tests.support.emptying import empty
from tests.support.frames import message

STAT = {"path": "/f", "kind": "file", "size": 2, "mtime": 1.5, "mode": 420, "inode": 7, "blocks": 4096}
EXIT = {
    "code": 3,
    "signal": None,
    "timed_out": False,
    "out_of_memory": False,
    "seconds": 0.001,
    "bytes": 2,
    "made_room": 0,
}
HELLO_1 = {"version": 1, "uptime": 5.0, "commands": [], "hands": False}


def older(welcome: dict[str, Any]) -> Any:
    """A guest of version 1, by the letter of what such a guest says."""

    async def answers(guest: FakeGuest, number: int, request: dict[str, Any]) -> None:
        match request["op"]:
            case "hello":
                await guest.send(message(number, wire.END, **welcome))
            case "run":
                await guest.send(message(number, wire.EVENT, started="c1", pid=9))
                await guest.send(frame(number, wire.DATA, b"ok", 1))
                await guest.send(message(number, wire.END, **EXIT))
            case "read":
                await guest.send(message(number, wire.EVENT, stat=STAT, length=2))
                await guest.send(frame(number, wire.DATA, b"ok"))
                await guest.send(message(number, wire.END, size=2))
            case "stat":
                await guest.send(message(number, wire.END, **STAT))
            case "list":
                await guest.send(frame(number, wire.DATA, json.dumps({**STAT, "link": None}).encode() + b"\n"))
                await guest.send(message(number, wire.END, complete=True))
            case "edit":
                details = {"lines": [1, 4]}
                await guest.send(message(number, wire.FAIL, error="many-matches", message="two", details=details))
            case _:
                await guest.send(message(number, wire.FAIL, error="of-the-future", message="no", details={"x": 1}))

    return answers


async def test_a_service_works_with_a_guest_of_version_1() -> None:
    async with faced(older(HELLO_1)) as machine:
        assert (await machine.hello()).version == 1
        exit, output = await machine.output("true")
        assert (exit.code, exit.signal, output) == (3, None, b"ok")
        assert await machine.read_bytes("/f", limit=10) == b"ok"
        assert (await machine.stat("/f")).inode == 7
        assert [entry.path async for entry in machine.list("/")] == ["/f"]
        with pytest.raises(MachineError) as no:
            await machine.edit("/f", "a", "b")
        assert (no.value.code, no.value.details.lines) == (ErrorCode.MANY_MATCHES, [1, 4])


async def test_an_error_code_that_this_version_does_not_know_is_an_io_error() -> None:
    async with faced(older(HELLO_1)) as machine:
        with pytest.raises(MachineError, match="no") as no:
            await machine.remove("/f")
        assert no.value.code is ErrorCode.IO


@pytest.mark.parametrize("version", [0, wire.NEWEST_VERSION + 1, True, "1", None, 10**400])
async def test_a_guest_of_a_version_that_nobody_knows_is_refused(version: object) -> None:
    async with faced(older({**HELLO_1, "version": version})) as machine:
        with pytest.raises(MachineError):
            await machine.hello()


@pytest.mark.parametrize(
    ("oldest", "newest", "common"), [(1, 1, 1), (1, 2, 2), (2, 2, 2), (1, 9, 2), (2, 9, 2), (3, 9, None), (0, 0, None)]
)
def test_the_newest_version_of_both_is_spoken(oldest: int, newest: int, common: int | None) -> None:
    assert wire.common_version(oldest, newest) == common


# ---- the true guest


@pytest.fixture(scope="module")
async def driver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryDriver]:
    driver = MemoryDriver(tmp_path_factory.mktemp("guest"))
    await driver.open()
    await driver.start("one", "a" * 32)
    yield driver
    await driver.delete("one")


async def say(driver: MemoryDriver, **request: object) -> list[tuple[int, dict[str, Any]]]:
    """One request on a connection of its own; every message until its end."""
    loop = asyncio.get_running_loop()
    heard, found = b"", []
    with await driver.connect("one") as sock:
        await loop.sock_sendall(sock, message(1, wire.OPEN, **request))
        async with asyncio.timeout(60):
            while not found or found[-1][0] not in (wire.END, wire.FAIL):
                heard += await loop.sock_recv(sock, 65536)
                while len(heard) >= 12 and len(heard) >= 12 + wire.read_header(heard)[0]:
                    length, _, kind, _ = wire.read_header(heard)
                    if kind in (wire.EVENT, wire.END, wire.FAIL):
                        found.append((kind, json.loads(heard[12 : 12 + length])))
                    heard = heard[12 + length :]
    return found


async def test_a_guest_answers_a_service_of_version_1_as_it_expects(driver: MemoryDriver) -> None:
    ((_, welcome),) = await say(driver, op="hello")
    assert welcome["version"] == 1
    assert {"uptime", "commands", "hands"} <= welcome.keys()
    request = {"argv": ["/bin/true"], "cwd": None, "env": {}, "timeout": None, "pty": None, "merge": True}
    (kind, started), (_, ended) = await say(driver, op="run", **request, stdin=False, id=None)
    assert kind == wire.EVENT
    assert {"started", "pid"} <= started.keys()
    assert ended.keys() >= EXIT.keys(), "and what it says besides is passed over"
    assert ended["code"] == 0
    roots = {"roots": None}
    ((_, stat),) = await say(driver, op="stat", path="/etc/hosts", follow=True, **roots)
    assert stat.keys() == STAT.keys()
    (_, opened), (_, sent) = await say(driver, op="read", path="/etc/hosts", offset=0, length=None, **roots)
    assert (opened["stat"].keys(), opened["length"], sent["size"]) == (STAT.keys(), stat["size"], stat["size"])
    ((kind, failed),) = await say(driver, op="remove", path="/nowhere", recursive=False, as_root=False, **roots)
    assert (kind, failed["error"], failed["details"]) == (wire.FAIL, "not-found", {})


async def test_a_guest_says_its_range_to_a_service_that_is_too_new(driver: MemoryDriver) -> None:
    ((_, welcome),) = await say(driver, op="hello", oldest=7, newest=9)
    assert (welcome["oldest"], welcome["newest"]) == (wire.OLDEST_VERSION, wire.NEWEST_VERSION)
    assert welcome["version"] < 7


@pytest.fixture
def old_guest() -> bytes:
    """The guest as of version 1: it says that version alone, and no range."""
    changes = {
        "guest/wire.py": [("NEWEST_VERSION = 1, 2", "NEWEST_VERSION = 1, 1")],
        "guest/__main__.py": [("oldest=wire.OLDEST_VERSION,", ""), ("newest=wire.NEWEST_VERSION,", "")],
    }
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle.build())) as now, zipfile.ZipFile(made, "w") as then:
        for name in now.namelist():
            text = now.read(name).decode()
            for old, new in changes.get(name, []):
                assert text.count(old) == 1
                text = text.replace(old, new)
            then.writestr(name, text)
    return made.getvalue()


async def test_a_chat_whose_guest_is_older_is_adopted_with_what_runs_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old_guest: bytes
) -> None:
    chat, chat_index = Chat("upgraded"), ChatIndex(tmp_path / "chats")
    monkeypatch.setattr(memory, "_built", old_guest)
    try:
        async with Fleet(MemoryDriver(tmp_path), chat_index, pool_size=0) as before, before.lease(chat) as machine:
            assert (await welcome_of(machine)) == (1, 1)
            async with machine.run("echo began; exec sleep 1000", id="left") as process:
                assert (await anext(process.output))[1] == b"began\n"
                process.detach()
        monkeypatch.setattr(memory, "_built", b"")
        async with Fleet(MemoryDriver(tmp_path), chat_index, pool_size=0) as after, after.lease(chat) as machine:
            assert (await welcome_of(machine)) == (1, 1)
            async with machine.attach("left") as process:
                assert (await anext(process.output))[1] == b"began\n"
                await process.kill(0.1)
                assert (await process.wait()).code is None
    finally:
        await empty(MemoryDriver(tmp_path))


async def welcome_of(machine: Machine) -> tuple[int, int]:
    welcome: operations.Welcome = await machine.hello()
    return welcome.version, welcome.newest
