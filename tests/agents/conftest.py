"""A service with the real coding agents in real sandboxes, and fakes of the models' APIs for them to call."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cubicle import settings as configuration
from cubicle.agents.gateway import Gateway
from cubicle.agents.live_tokens import LiveTokens
from cubicle.agents.mcp_servers import McpServers, read_servers
from cubicle.agents.upstreams import apis
from cubicle.drivers.factory import make_driver
from cubicle.egress.proxy import EgressProxy
from cubicle.images.store import ImageStore
from cubicle.outbound import make_agent_tokens, make_budgets, make_network, make_sub_agents
from cubicle.prompt.user_tokens import UserTokens
from cubicle.prompt.workspace import Workspace
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.sandbox_services import SandboxService
from cubicle.settings import Settings
from tests.agents.fake_api import FakeApi
from tests.conftest import absent
from tests.drivers.makers import some_base
from tests.support.service import Options, Service, serve, service_of

# Random, so that what a search finds is the key and nothing else.
KEY = f"sk-ant-{secrets.token_urlsafe(40)}"
PROGRAMS = configuration.load().image_dir / "agents" / "bin"


def program(name: str) -> str:
    """The agent, as the settings name it, if it is installed."""
    if not (PROGRAMS / name).exists():
        absent(f"needs the coding agent {name}: make agents")
    return name


def image(needed: str = "usr/bin/tmux") -> str:
    """The smallest image that holds a file."""
    store = ImageStore(configuration.load().image_dir)
    if (some_base(store).rootfs / needed).exists():
        return some_base(store).digest
    for base in sorted(store.built(), key=lambda base: base.manifest.size):
        if (base.rootfs / needed).exists():
            return base.digest
    absent(f"needs a sandbox image with /{needed}: make image")
    raise AssertionError


def settings_of(folder: Path, url: str, **given: Any) -> Settings:
    usual = {
        "data_dir": folder,
        "driver": "oci",
        "sandbox_image": given.get("sandbox_image") or image(),
        "pool_size": 0,
        "sub_agent_cli": program("claude"),
        "anthropic_base_url": url,
        "anthropic_api_key": KEY,
    }
    return Settings(_env_file=None, **{**usual, **given})  # type: ignore[call-arg]


def make_relay(settings: Settings, servers: McpServers, tokens: LiveTokens) -> Gateway:
    """The gateway in this process."""
    budgets = make_budgets(settings)
    budgets.open()
    return Gateway(apis(settings), servers, budgets, tokens)


@asynccontextmanager
async def agents_service(
    folder: Path, url: str, *, egress: EgressProxy | None = None, tokens: UserTokens | None = None, **given: Any
) -> AsyncIterator[Service]:
    """Like the service that `app.py` builds; a second one over the same folder finds what the first left."""
    settings = await asyncio.to_thread(settings_of, folder, url, **given)
    servers = await asyncio.to_thread(read_servers, settings.mcp_servers_file, ["http://127.0.0.1:8081"])
    agent_tokens = make_agent_tokens(settings, b"secret of the test")
    driver = make_driver(settings)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(agent_tokens)
        sandbox_services: list[SandboxService] = [agent_tokens.attached]
        if egress is None:
            network = await stack.enter_async_context(make_network(settings, driver, servers, agent_tokens, tokens))
            sandbox_services.append(network.attached)
        else:
            relay = await asyncio.to_thread(make_relay, settings, servers, agent_tokens)
            for part in (relay, egress):
                await stack.enter_async_context(part)
                sandbox_services.append(part.attached)
        fleet = await stack.enter_async_context(
            Fleet(driver, ChatIndex(folder / "ledger"), pool_size=0, sandbox_services=sandbox_services)
        )
        agents = make_sub_agents(settings, Workspace(fleet, None, tokens), servers, agent_tokens)
        assert agents is not None
        options = Options(settings=settings.model_dump(), sub_agent=agents)
        service = await stack.enter_async_context(service_of(fleet, options))
        await stack.enter_async_context(agents)
        yield service


@asynccontextmanager
async def emptied(folder: Path, **given: Any) -> AsyncIterator[Path]:
    """A folder for a service, without sandboxes in the end."""
    try:
        yield folder
    finally:
        driver = make_driver(await asyncio.to_thread(settings_of, folder, "http://127.0.0.1:9", **given))
        await driver.open()
        for seen in await driver.list():
            await driver.delete(seen.name)
        await driver.close()


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
