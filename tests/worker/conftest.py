"""A true network worker beside true guests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cubicle.agents.budget import BudgetLimits as Budget
from cubicle.agents.budget import BudgetStore
from cubicle.agents.live_tokens import LiveTokens
from cubicle.core.chat import Chat
from cubicle.core.network import NetworkMode
from cubicle.drivers.memory import MemoryDriver
from cubicle.egress.policy import Policy, Rule
from cubicle.egress.rules_file import Additions
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.warm_pool import connect
from cubicle.worker import spawner
from cubicle.worker.network import NetworkWorker
from cubicle.worker.setup import Setup

CHAT = Chat("chat-1")
OTHER = Chat("chat-2", "other")
OPEN = Policy(NetworkMode.OPEN, (Rule("loopback of the test", networks=(ip_network("127.0.0.0/8"),)),))


_start_program = spawner.start_program


@pytest.fixture(scope="package", autouse=True)
def spawners_are_programs(spawners_are_forked: None) -> Iterator[None]:
    with mock.patch("cubicle.worker.spawner.start_program", _start_program):
        yield


class Ground:
    """A worker, and machines that it serves."""

    def __init__(self, driver: Driver, network: NetworkWorker, tokens: LiveTokens, stack: AsyncExitStack) -> None:
        self.driver = driver
        self.network = network
        self.tokens = tokens
        self._stack = stack

    async def machine(self, chat: Chat = CHAT) -> Machine:
        """A sandbox with a network."""
        await self.driver.start(chat.digest, chat.digest)
        self._stack.push_async_callback(self.driver.delete, chat.digest)
        machine = await connect(self.driver, chat.digest)
        self._stack.callback(machine.close)
        await self._stack.enter_async_context(self.network.attached(chat, machine))
        return machine


@asynccontextmanager
async def ground_of(
    folder: Path,
    driver: Driver | None = None,
    policy: Policy = OPEN,
    *,
    additions: Additions | None = None,
    transparent: Callable[[], bool] = lambda: False,
    budget: Budget | None = None,
    **setup: Any,
) -> AsyncIterator[Ground]:
    driver = driver or MemoryDriver(folder, own_network=True)
    tokens = LiveTokens(folder / "agent-runs", b"0" * 32, max_seconds=3600)
    network = NetworkWorker(
        Setup(policy, folder=folder / "egress", **setup),
        budgets=BudgetStore(folder / "agents", budget or Budget()),
        tokens=tokens,
        additions=additions,
        transparent=transparent,
    )
    await driver.open()
    try:
        async with tokens, network, AsyncExitStack() as stack:
            yield Ground(driver, network, tokens, stack)
    finally:
        await driver.close()


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    if shutil.which("unshare") is None:
        pytest.skip("needs the unshare command")
    async with ground_of(tmp_path) as made:
        yield made


async def until(condition: Callable[[], Any] | Callable[[], Awaitable[Any]], seconds: float = 60.0) -> None:
    """Returns when the condition holds."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)


async def shell(machine: Machine, command: str, **options: Any) -> str:
    """What a command prints, its errors included."""
    _, output = await machine.output(command, timeout=120, **options)
    return output.decode(errors="replace")
