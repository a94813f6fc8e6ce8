"""A true guest behind a true proxy, and servers of the test's own to reach through it."""

from __future__ import annotations

import logging
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.core.network import NetworkMode
from cubicle.drivers.memory import MemoryDriver
from cubicle.egress.blocked_networks import Address
from cubicle.egress.policy import Policy, Rule
from cubicle.egress.proxy import EgressProxy
from cubicle.egress.upstream_connections import EgressLimits
from cubicle.log import TextLines, fields_of
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.warm_pool import connect

CHAT = Chat("chat-1")
LOOPBACK = Rule("loopback of the test", networks=(ip_network("127.0.0.0/8"),))
OPEN = Policy(NetworkMode.OPEN, (LOOPBACK,))


class Audit(logging.Handler):
    """The audit log of the test."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[dict[str, Any]] = []
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "cubicle.egress":  # what its modules log goes through here as well
            return
        self.text.append(TextLines().format(record))
        assert "\n" not in self.text[-1]
        self.lines.append({"event": record.getMessage().removeprefix("egress "), **fields_of(record)})

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]


@pytest.fixture
def audit() -> Any:
    handler = Audit()
    logger = logging.getLogger("cubicle.egress")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def names(host: str) -> Sequence[Address]:
    """Names of the test: everything under .test is this machine; the rest of the world does not exist."""
    if host.endswith(".test") or host == "localhost":
        return [ip_address("127.0.0.1")]
    raise OSError("no such name")


class Sandboxes:
    """Makes a machine with a proxy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def behind(
        self,
        policy: Policy = OPEN,
        *,
        chat: Chat = CHAT,
        rules: Path | None = None,
        limits: EgressLimits | None = None,
        resolve: Callable[[str], Awaitable[Sequence[Address]]] = names,
        trust: ssl.SSLContext | None = None,
        driver: Driver | None = None,
        transparent: Callable[[], bool] = lambda: False,
        additions: Callable[[Chat], Awaitable[tuple[Rule, ...]]] | None = None,
    ) -> AsyncIterator[Machine]:
        driver = driver or MemoryDriver(self._folder)
        await driver.open()
        await driver.start(chat.digest, chat.digest)
        try:
            machine = await connect(driver, chat.digest)
            options: dict[str, Any] = {
                "rules_file": rules,
                "limits": limits,
                "resolve": resolve,
                "trust": trust,
                "transparent": transparent,
            }
            options["additions"] = additions
            proxy = EgressProxy(policy, folder=self._folder / "egress", **options)
            async with proxy, proxy.attached(chat, machine):
                yield machine
            machine.close()
        finally:
            await driver.delete(chat.digest)
            await driver.close()


@pytest.fixture
def sandboxes(tmp_path: Path) -> Sandboxes:
    if shutil.which("unshare") is None:
        pytest.skip("needs the unshare command")
    return Sandboxes(tmp_path)


Behind = Callable[..., AbstractAsyncContextManager[Machine]]


@pytest.fixture
def behind(sandboxes: Sandboxes) -> Behind:
    return sandboxes.behind


async def shell(machine: Machine, command: str, **options: Any) -> str:
    """What a command prints, its errors included."""
    proxy = machine.environment["HTTP_PROXY"].removeprefix("http://")
    _, output = await machine.output(command, timeout=120, env={"DOOR": proxy}, **options)
    return output.decode(errors="replace")
