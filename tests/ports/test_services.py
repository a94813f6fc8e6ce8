"""The commands of services.json run once for each start of the sandbox, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.errors import StartFailed
from cubicle.machine.machine import Machine
from cubicle.ports.services import StartCommands
from cubicle.sandbox import fleet as fleet_module
from cubicle.sandbox import warm_pool
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.fleet import Fleet
from tests.support.emptying import empty

CHAT = Chat("served")
DECLARE = """mkdir -p .cubicle && echo '{"services": {"one": {"command": "echo ran"}}}' > .cubicle/services.json"""
RUNS = "cat .cubicle/one.log 2>/dev/null | grep -c ran || true"


class Told(StartCommands):
    """Says when it has done what it had to."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()

    async def _start(self, chat: Chat, machine: Machine) -> None:
        await super()._start(chat, machine)
        self.done.set()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path
    await empty(MemoryDriver(tmp_path))


@asynccontextmanager
async def fleet_of(folder: Path, commands: StartCommands) -> AsyncIterator[Fleet]:
    index = ChatIndex(folder / "chats")
    async with Fleet(MemoryDriver(folder), index, pool_size=0, sandbox_services=[commands.attached]) as fleet:
        yield fleet


async def runs(fleet: Fleet, commands: Told, least: int) -> int:
    """How often the command has run, after the service has done what it had to."""
    async with asyncio.timeout(60), fleet.lease(CHAT) as machine:
        await commands.done.wait()
        while (count := int((await machine.output(RUNS))[1])) < least:
            await asyncio.sleep(0.05)
    commands.done.clear()
    return count


async def declare(fleet: Fleet, commands: Told) -> None:
    assert await runs(fleet, commands, 0) == 0
    async with fleet.lease(CHAT) as machine:
        await machine.output(DECLARE)
    await fleet.stop(CHAT)


async def test_a_service_that_is_restarted_runs_no_command_again(folder: Path) -> None:
    commands = Told()
    async with fleet_of(folder, commands) as fleet:
        await declare(fleet, commands)
        assert await runs(fleet, commands, 1) == 1
    for _ in range(2):
        async with fleet_of(folder, commands) as fleet:
            assert await runs(fleet, commands, 1) == 1
    async with fleet_of(folder, commands) as fleet:
        await commands.done.wait()
        commands.done.clear()
        await fleet.stop(CHAT)
        assert await runs(fleet, commands, 2) == 2


async def test_a_connection_that_breaks_runs_no_command_again(folder: Path) -> None:
    commands = Told()
    async with fleet_of(folder, commands) as fleet:
        await declare(fleet, commands)
        assert await runs(fleet, commands, 1) == 1
        async with fleet.lease(CHAT) as machine:
            machine.close()
            await machine.gone()
        assert await runs(fleet, commands, 1) == 1


async def test_a_sandbox_that_loads_slowly_has_its_commands_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the limit of a start: it is connected to by the next call, which did not start it."""
    commands, slow = Told(), True

    async def connect(driver: Driver, name: str, *, patience: float = 30) -> Machine:
        if slow and name in started:
            await asyncio.sleep(3600)
        return await warm_pool.connect(driver, name, patience=patience)

    started: list[str] = []

    class Slow(MemoryDriver):
        async def start(self, name: str, owner: str | None) -> None:
            await super().start(name, owner)
            started.append(name)

    index = ChatIndex(folder / "chats")
    async with fleet_of(folder, commands) as fleet:
        await declare(fleet, commands)
    async with Fleet(Slow(folder), index, pool_size=0, sandbox_services=[commands.attached]) as fleet:
        monkeypatch.setattr(fleet_module, "connect", connect)
        with monkeypatch.context() as hurried:
            hurried.setattr(fleet_module, "_START_LIMIT", 5.0)
            with pytest.raises(StartFailed):
                async with fleet.lease(CHAT):
                    pass
        assert len(started) == 1
        slow = False
        assert await runs(fleet, commands, 1) == 1
        assert len(started) == 1
