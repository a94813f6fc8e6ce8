"""A service with the real coding agent over the memory driver, and a fake of the model's API for it to call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cubicle.app import make_relay, make_sub_agents
from cubicle.chat.mcp_servers import read_servers
from cubicle.chat.workplace import Workplace
from cubicle.drivers.memory import MemoryDriver
from cubicle.rules.passes import signing_key
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.ledger import Ledger
from cubicle.settings import Settings
from tests.conftest import absent
from tests.service import Options, Service, serve, service_of
from tests.sub_agent.fake_api import FakeApi

KEY = "sk-the-real-key-that-stays-outside"
PROGRAMS = Path(os.environ.get("IMAGE_DIR", "/var/lib/cubicle/images")) / "agents" / "bin"


def program(name: str) -> str:
    """Where the agent's program is, in this host and so in a sandbox of the memory driver."""
    if not (PROGRAMS / name).exists():
        absent(f"needs the coding agent {name}: make agents")
    return str(PROGRAMS / name)


@asynccontextmanager
async def agents_service(folder: Path, url: str, **settings: Any) -> AsyncIterator[Service]:
    """Like the service that `app.py` builds; a second one over the same folder finds what the first left."""
    given = {
        "data_dir": folder,
        "sub_agent_cli": program("claude"),
        "anthropic_base_url": url,
        "anthropic_api_key": KEY,
        **settings,
    }
    read = Settings(_env_file=None, **given)  # type: ignore[call-arg]
    servers = await asyncio.to_thread(read_servers, read.mcp_servers_file, ["http://127.0.0.1:8081"])
    key = signing_key(b"secret of the test")
    relay = make_relay(read, servers, key)
    driver = MemoryDriver(folder, own_network=True)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(relay)
        fleet = await stack.enter_async_context(
            Fleet(driver, Ledger(folder / "ledger"), pool_size=0, attendants=[relay.attend])
        )
        agents = make_sub_agents(read, Workplace(fleet), servers, key)
        assert agents is not None
        service = await stack.enter_async_context(service_of(fleet, Options(settings=given, sub_agent=agents)))
        await stack.enter_async_context(agents)
        yield service


@asynccontextmanager
async def emptied(folder: Path) -> AsyncIterator[Path]:
    """A folder for a service, without sandboxes in the end."""
    try:
        yield folder
    finally:
        driver = MemoryDriver(folder, own_network=True)
        await driver.open()
        for seen in await driver.running():
            await driver.delete(seen.name)


@pytest.fixture(scope="module")
async def module_api() -> AsyncIterator[tuple[FakeApi, str]]:
    api = FakeApi(KEY)
    async with serve(api.app()) as url:
        yield api, url


@pytest.fixture
def api(module_api: tuple[FakeApi, str]) -> FakeApi:
    """The module's API, with nothing scripted and nothing asked yet."""
    module_api[0].reset()
    return module_api[0]


@pytest.fixture
def api_url(module_api: tuple[FakeApi, str]) -> str:
    return module_api[1]


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory, module_api: tuple[FakeApi, str]) -> AsyncIterator[Service]:
    folder = tmp_path_factory.mktemp("s")
    async with emptied(folder), agents_service(folder, module_api[1]) as running:
        yield running
