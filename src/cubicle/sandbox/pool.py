"""Blank sandboxes that are up before anybody asks."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from cubicle.sandbox.driver import Driver, NoSpace, SandboxError
from cubicle.sandbox.line import Line
from cubicle.sandbox.machine import Machine

log = logging.getLogger(__name__)

_REST_AFTER_FAILURE = 10.0
_LOADING_SECONDS = 60.0

Furnish = Callable[[Machine], Awaitable[None]]
"""What a blank sandbox gets before anybody waits for it."""


async def connect(driver: Driver, name: str, *, patience: float = _LOADING_SECONDS) -> Machine:
    """The machine of a sandbox that is up, checked to be one of ours.

    It may have been started this moment, and its socket is there before the guest is loaded. Less `patience` is for
    one that was up before.
    """
    reach = partial(driver.connect, name)
    machine = Machine(name, await Line.over(await reach()), driver.uploads(name), reach, partial(driver.network, name))
    try:
        await machine.hello(patience)
    except BaseException:
        machine.close()
        raise
    return machine


def new_name() -> str:
    return "s" + secrets.token_hex(10)


class Pool:
    """Keeps `size` blank sandboxes running. One task of the fleet fills it."""

    def __init__(self, driver: Driver, size: int, furnish: Furnish | None = None) -> None:
        self._driver = driver
        self._size = size
        self._furnish = furnish
        self._blank: deque[Machine] = deque()
        self._wanted = asyncio.Event()
        self._full = asyncio.Event()

    def adopt(self, machine: Machine) -> bool:
        """Take in a blank one that outlived a service before; False if there is no room."""
        if len(self._blank) >= self._size:
            return False
        self._blank.append(machine)
        return True

    def take(self) -> Machine | None:
        """A blank sandbox that lives, if there is one."""
        self._wanted.set()
        self._full.clear()
        while self._blank:
            machine = self._blank.popleft()
            if machine.alive:
                return machine
        return None

    async def filled(self) -> None:
        """Returns when the pool is full."""
        self._wanted.set()
        await self._full.wait()

    def close(self) -> None:
        """Hang up; the blank ones stay up for the next service."""
        while self._blank:
            self._blank.popleft().close()

    async def keep_full(self) -> None:
        """Runs for as long as the fleet does."""
        while True:
            self._blank = deque(machine for machine in self._blank if machine.alive)
            if len(self._blank) >= self._size:
                self._full.set()
                self._wanted.clear()
                await self._wanted.wait()
                continue
            name = new_name()
            try:
                await self._driver.start(name, None)
                machine = await connect(self._driver, name)
                if self._furnish is not None:
                    await self._furnish(machine)
                await self._driver.flush(name)
                self._blank.append(machine)
            except Exception as error:
                if isinstance(error, NoSpace):
                    log.debug("no blank sandbox is made: %s", error)  # who watches the space has said so
                elif isinstance(error, SandboxError):
                    log.error("a blank sandbox could not be made: %s", error)
                else:
                    log.exception("a blank sandbox could not be made")
                with suppress(SandboxError, OSError):
                    await self._driver.delete(name)
                await asyncio.sleep(_REST_AFTER_FAILURE)
