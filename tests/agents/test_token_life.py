"""An agent's token works while its run goes on, or a person has the terminal open, and not a moment longer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from websockets.asyncio.client import connect

from cubicle.agents.agent_token import RUN_ENDED, TAKE_OVER_ENDED, AgentToken
from cubicle.agents.gateway import ADDRESS
from cubicle.agents.live_tokens import LiveTokens, TokenRefused
from cubicle.agents.mcp_servers import McpServers
from cubicle.agents.runs import SubAgents
from cubicle.core.chat import DEFAULT_TENANT, Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.terminal import TerminalRoutes
from cubicle.outbound import make_agent_tokens, make_network, make_sub_agents
from cubicle.prompt.workspace import Workspace
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings
from tests.agents.conftest import KEY
from tests.agents.fake_api import FakeApi, Hold
from tests.support.service import Options, Service, raw_post, serve, service_of, text

pytestmark = pytest.mark.timeout(300)

CHAT = Chat("life")
# Does what the prompt says, as a shell would, and speaks of it as Claude Code does.
AGENT = """\
#!/bin/bash
while [ $# -gt 0 ]; do case $1 in --session-id|--resume) session=$2;; esac; shift; done
prompt=$(cat)
echo "{\\"type\\": \\"system\\", \\"session_id\\": \\"$session\\"}"
eval "$prompt"
echo "{\\"type\\": \\"result\\", \\"is_error\\": false, \\"result\\": \\"done\\", \\"session_id\\": \\"$session\\"}"
"""
# The least that a terminal server must be for the relay: one that accepts a WebSocket and keeps it.
TTYD = """\
import base64, hashlib, socket, threading
def serve(peer):
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += peer.recv(4096)
    lines = dict(line.split(": ", 1) for line in head.decode().split("\\r\\n")[1:] if ": " in line)
    key = {name.lower(): value for name, value in lines.items()}["sec-websocket-key"]
    made = hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    peer.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                 b"Sec-WebSocket-Accept: " + base64.b64encode(made) + b"\\r\\nSec-WebSocket-Protocol: tty\\r\\n\\r\\n")
    while peer.recv(4096):
        pass
listener = socket.create_server(("127.0.0.1", 7681))
print("listens", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
GO = "until test -e ~/{name}; do read -t 0.05 < <(:) || true; done"


@dataclass
class Site:
    service: Service
    api: FakeApi
    tokens: LiveTokens
    agents: SubAgents

    async def run(self, prompt: str, **arguments: Any) -> str:
        return text(await self.service.call("sub_agent", {"prompt": prompt, **arguments}, chat=CHAT.id))

    async def shell(self, command: str) -> str:
        return await self.service.bash(command, chat=CHAT.id)

    async def until(self, command: str) -> None:
        async with asyncio.timeout(60):
            while "yes" not in await self.shell(f"({command}) >/dev/null 2>&1 && echo yes || true"):
                await asyncio.sleep(0.05)

    async def ask(self, token: str = "$(cat ~/token)") -> str:
        """What the gateway says to whoever shows this token, and its status."""
        return await self.shell(asked(token))

    async def until_refused(self, token: str = "$(cat ~/token)", why: str = RUN_ENDED) -> None:
        """Ask until the token is refused. What is asked in the moment in which it ends is cut off, as any call is."""
        async with asyncio.timeout(60):
            while not refused(said := await self.shell(f"{asked(token)} || true"), why):
                assert said.endswith("\n200\n") or re.search(r"curl: \((18|52|56)\)", said), said
                await asyncio.sleep(0.05)


def asked(token: str) -> str:
    body = '{"model": "claude-sonnet-5-5", "messages": [], "tools": [1]}'
    return (
        f"curl -sS -m 60 -w '\\n%{{http_code}}\\n' -H \"x-api-key: {token}\" -d '{body}' "
        f"{ADDRESS}/anthropic/v1/messages"
    )


KEEP = "echo $ANTHROPIC_AUTH_TOKEN > ~/token"
TAKE_OVER = "$(sed -n 's/^export ANTHROPIC_AUTH_TOKEN=//p' ~/.cache/cubicle/agents/*/take-over | tail -n 1)"


@asynccontextmanager
async def started(folder: Path, api: FakeApi, **given: Any) -> AsyncIterator[Site]:
    """A service over the folder; leaving it leaves the sandboxes up, as a restart does."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(api.app()))
        usual = {"data_dir": folder, "anthropic_base_url": url, "anthropic_api_key": KEY}
        usual |= {"sub_agent_cli": "/home/assistant/claude"}
        settings = Settings(_env_file=None, **{**usual, **given})  # type: ignore[arg-type]
        tokens = make_agent_tokens(settings, b"secret of the test")
        driver = MemoryDriver(folder, own_network=True)
        network = make_network(settings, driver, McpServers(), tokens)
        for part in (tokens, network):
            await stack.enter_async_context(part)
        sandbox_services = [tokens.attached, network.attached]
        fleet = await stack.enter_async_context(
            Fleet(driver, ChatIndex(folder / "ledger"), pool_size=0, sandbox_services=sandbox_services)
        )
        fleet.on_removed(tokens.forget)
        agents = make_sub_agents(settings, Workspace(fleet), McpServers(), tokens)
        assert agents is not None
        options = Options(settings=settings.model_dump(), sub_agent=agents)
        service = await stack.enter_async_context(service_of(fleet, options))
        await stack.enter_async_context(agents)
        site = Site(service, api, tokens, agents)
        await site.shell(f"cat > ~/claude <<'EOF'\n{AGENT}EOF\nchmod +x ~/claude")
        yield site


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path
    driver = MemoryDriver(tmp_path, own_network=True)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi(KEY)


@pytest.fixture
async def site(folder: Path, api: FakeApi) -> AsyncIterator[Site]:
    async with started(folder, api) as made:
        yield made


def refused(answer: str, why: str = RUN_ENDED) -> bool:
    return answer.endswith("\n401\n") and why in answer


async def test_a_token_works_in_its_run_and_ends_with_it(site: Site) -> None:
    said = await site.run(f"{KEEP}; {asked('$ANTHROPIC_AUTH_TOKEN')} > ~/during")
    assert said.startswith("done")
    assert (await site.shell("cat ~/during")).endswith("\n200\n")
    assert refused(await site.ask())
    assert len(site.api.requests) == 1


async def test_it_ends_with_a_run_that_fails(site: Site) -> None:
    assert "exit" in await site.run(f"{KEEP}; exit 3")
    assert refused(await site.ask())


async def test_it_ends_with_a_run_that_takes_too_long(folder: Path, api: FakeApi) -> None:
    async with started(folder, api, sub_agent_timeout=2) as site:
        assert "timed out" in await site.run(f"{KEEP}; tail -f /dev/null")
        assert refused(await site.ask())


async def test_it_ends_with_a_run_that_is_cancelled(site: Site) -> None:
    call = {"jsonrpc": "2.0", "id": 91, "method": "tools/call"}
    call["params"] = {"name": "sub_agent", "arguments": {"prompt": f"{KEEP}; tail -f /dev/null"}}
    async with raw_post(site.service.url, call, f"X-Chat-Id: {CHAT.id}") as reader:
        await site.until("test -s ~/token")
        assert (await site.ask()).endswith("\n200\n")
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 91}}
        assert (await site.service.post(note, chat=CHAT.id)).status_code == 202
        await asyncio.wait_for(reader.read(), 60)
    await site.until_refused()


async def test_it_ends_with_the_sandbox_and_does_not_wake_with_it(site: Site) -> None:
    run = asyncio.create_task(site.run(f"{KEEP}; tail -f /dev/null"))
    await site.until("test -s ~/token")
    await site.service.fleet.stop(CHAT)
    await run
    assert refused(await site.ask())


async def test_it_works_on_for_a_run_that_outlives_the_service(folder: Path, api: FakeApi) -> None:
    async with started(folder, api) as site:
        call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call"}
        prompt = f"{KEEP}; {GO.format(name='go')}; {asked('$ANTHROPIC_AUTH_TOKEN')} > ~/after"
        call["params"] = {"name": "sub_agent", "arguments": {"prompt": prompt}}
        async with raw_post(site.service.url, call, f"X-Chat-Id: {CHAT.id}"):
            await site.until("test -s ~/token")
    async with started(folder, api) as site:
        assert (await site.ask()).endswith("\n200\n")
        await site.shell("touch ~/go")
        await site.until("grep 200 ~/after")
        await site.until_refused()
    async with started(folder, api) as site:
        assert refused(await site.ask())


async def test_a_resumed_run_of_a_service_before_is_followed_to_its_end(folder: Path, api: FakeApi) -> None:
    async with started(folder, api) as site:
        call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call"}
        call["params"] = {"name": "sub_agent", "arguments": {"prompt": f"{KEEP}; {GO.format(name='go')}"}}
        async with raw_post(site.service.url, call, f"X-Chat-Id: {CHAT.id}"):
            await site.until("test -s ~/token && ls ~/.cache/cubicle/agents/*/session")
        session = (await site.shell("cat ~/.cache/cubicle/agents/*/session")).strip()
    async with started(folder, api) as site:
        keep = "echo $ANTHROPIC_AUTH_TOKEN > ~/second"
        run = asyncio.create_task(site.run(keep, resume_session_id=session))
        assert (await site.ask()).endswith("\n200\n")
        await site.shell("touch ~/go")
        assert "done" in await run
        assert refused(await site.ask())
        assert refused(await site.ask("$(cat ~/second)"))


async def test_two_runs_have_two_tokens(site: Site) -> None:
    first = asyncio.create_task(site.run(f"{KEEP}; {GO.format(name='one')}"))
    second = asyncio.create_task(site.run(f"echo $ANTHROPIC_AUTH_TOKEN > ~/second; {GO.format(name='two')}"))
    await site.until("test -s ~/token && test -s ~/second")
    await site.shell("touch ~/one")
    await first
    assert refused(await site.ask())
    assert (await site.ask("$(cat ~/second)")).endswith("\n200\n")
    await site.shell("touch ~/two")
    await second
    assert refused(await site.ask("$(cat ~/second)"))


async def test_a_call_under_way_ends_with_the_run(site: Site) -> None:
    site.api.script = [Hold()]
    await site.shell(f"cat > ~/call <<'EOF'\n{asked('$ANTHROPIC_AUTH_TOKEN')} > ~/left 2>&1; echo over >> ~/left\nEOF")
    run = asyncio.create_task(site.run(f"setsid bash ~/call </dev/null >/dev/null 2>&1 & {GO.format(name='go')}"))
    await asyncio.wait_for(site.api.holding.wait(), 60)
    await site.shell("touch ~/go")
    await run
    await site.until("grep over ~/left")
    left = await site.shell("cat ~/left")
    assert "message_start" in left
    assert "curl: (18)" in left, left  # cut off by the service, not given up by curl


async def test_a_take_over_works_while_a_terminal_is_open(folder: Path, api: FakeApi) -> None:
    async with started(folder, api) as site:
        site.tokens._grace = 1.0
        await site.run(KEEP)
        assert refused(await site.ask(TAKE_OVER), TAKE_OVER_ENDED)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("state", {}).update(tenant=DEFAULT_TENANT, opened=None)
            await routes(scope, receive, send)

        routes = Starlette(
            routes=RouteTable().bind(terminal=TerminalRoutes(site.service.fleet, sub_agents=site.agents))
        )
        async with site.service.fleet.lease(CHAT) as machine, machine.run(["python3", "-c", TTYD]) as ttyd:
            async for _ in ttyd.output:
                break  # it listens
            async with serve(app) as url:
                place = f"{url.replace('http', 'ws')}/terminal/{CHAT.id}/ws"
                async with connect(place, subprotocols=["tty"]):  # type: ignore[list-item]
                    assert (await site.ask(TAKE_OVER)).endswith("\n200\n")
                    assert refused(await site.ask())  # the run's own token stays ended
                    await asyncio.sleep(1.1)  # longer than the grace
                    assert (await site.ask(TAKE_OVER)).endswith("\n200\n")
        await site.until_refused(TAKE_OVER, TAKE_OVER_ENDED)


async def test_a_take_over_outlives_a_restart_of_the_service_by_the_grace(folder: Path, api: FakeApi) -> None:
    async with started(folder, api) as site:
        await site.run(KEEP)
        async with site.tokens.terminal(CHAT):
            assert (await site.ask(TAKE_OVER)).endswith("\n200\n")
    async with started(folder, api) as site:
        assert (await site.ask(TAKE_OVER)).endswith("\n200\n")
        assert refused(await site.ask())


async def test_the_page_opens_a_session_before_its_terminal_is_there(site: Site) -> None:
    await site.run("true")
    session = (await site.shell("cat ~/.cache/cubicle/agents/*/session")).strip()
    await site.shell("rm -r ~/.cache/cubicle/agents")
    async with site.service.fleet.lease(CHAT) as machine:
        await site.agents.open(CHAT, machine, session, "claude")
    assert (await site.ask(TAKE_OVER)).endswith("\n200\n")
    await site.shell("tmux kill-server")


async def test_a_removed_chat_leaves_no_record(site: Site, folder: Path) -> None:
    await site.run(KEEP)
    assert [path.name for path in (folder / "agent-runs").iterdir()] == [CHAT.digest]
    await site.service.fleet.remove(CHAT, now=True)
    assert list((folder / "agent-runs").iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 50, b"[]", b'{"runs": 5}', b'{"runs": ["x"], "terminal_closed_at": NaN}']
)
async def test_a_record_that_cannot_be_read_is_set_aside(folder: Path, api: FakeApi, content: bytes) -> None:
    (folder / "agent-runs").mkdir()
    (folder / "agent-runs" / CHAT.digest).write_bytes(content)
    async with started(folder, api) as site:
        await site.run(KEEP)
        assert refused(await site.ask())
    (aside,) = (folder / "agent-runs").glob(f"{CHAT.digest}.bad-*")
    assert aside.read_bytes() == content


async def test_a_guest_that_never_says_that_a_run_ended_does_not_keep_its_token(tmp_path: Path) -> None:
    async with LiveTokens(tmp_path / "runs", b"key", max_seconds=0.2) as tokens, tokens.running(CHAT, "agent-0"):
        text_of_token = tokens.issue(CHAT, AgentToken("agent-0", 2**40))
        given = tokens.check(CHAT, text_of_token)
        with tokens.using(CHAT, given) as scope:
            await asyncio.sleep(60)
        assert scope.cancelled_caught
        with pytest.raises(TokenRefused, match="ended with the run"):
            tokens.check(CHAT, text_of_token)
