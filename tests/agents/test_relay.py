"""The relay by itself: what a program in the sandbox can and cannot do with a pass."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cubicle.agents.agent_token import AgentToken
from cubicle.agents.budget import BudgetLimits, BudgetStore, SpentBudget
from cubicle.agents.gateway import ADDRESS
from cubicle.agents.mcp_servers import McpServer, McpServers
from cubicle.agents.pricing import TokenUsage
from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.machine import Machine
from cubicle.outbound import make_agent_tokens
from cubicle.sandbox.warm_pool import connect
from cubicle.settings import Settings
from tests.agents.conftest import KEY, make_relay
from tests.agents.fake_api import Break, FakeApi, Refuse, Say, Wait
from tests.agents.vault import SECRET, vault
from tests.support.service import serve

CHAT = Chat("relay")
SECRET_OF_SERVICE = b"0" * 32
MESSAGES = f"{ADDRESS}/anthropic/v1/messages"

INTERPRETED = [
    *(f"/anthropic/v1/models/{name}" for name in (".", "..", "...", ".hidden", "%2e", "%2e%2e", ".%2E", "%252e%252e")),
    *(f"/anthropic/v1/models/{name}" for name in ("..%2f..", "..%5c..", "..\\..", "..;", "..;x=1", ";", "a;b", "a%00")),
    *("/anthropic/v1/models//", "//anthropic/v1/messages", "/anthropic//v1/messages", "/anthropic/./v1/messages"),
    *("/anthropic/v1/messages/..", "/anthropic/v1/messages/../messages", "/anthropic/v1/x/../messages"),
    *("/anthropic/../anthropic/v1/messages", "/../anthropic/v1/messages", "/anthropic\\v1\\messages"),
    *("/anthropic/v1%2fmessages", "/anthropic/v1/messages%2f..", "/anthropic/v1/messages;x", "/anthropic;/v1/messages"),
    *("/gemini/v1beta/models/..:generateContent", "/gemini/v1beta/models/..%2f:generateContent"),
    *("/gemini/v1beta/models/%2e%2e:countTokens", "/openai/responses/../files", "/openai/models/.."),
    *(
        "/mcp/../anthropic/v1/messages",
        "/mcp/vault/..",
        "/mcp/vault/%2e%2e",
        "/mcp/./vault",
        "/mcp/vault;x",
        "/mcp//vault",
    ),
]


@dataclass
class Ground:
    machine: Machine
    api: FakeApi
    purses: BudgetStore
    headers: str

    async def shell(self, command: str) -> str:
        _, output = await self.machine.output(command, timeout=150)
        return output.decode(errors="replace")

    async def ask(self, options: str = "") -> str:
        """A model call by curl: what it answered, and its status."""
        body = '{"model": "claude-sonnet-5-5", "messages": [], "tools": [1]}'
        return await self.shell(f"curl -sS -w '\\n%{{http_code}}' {self.headers} {options} -d '{body}' {MESSAGES}")


@asynccontextmanager
async def ground_of(folder: Path, servers: tuple[McpServer, ...] = (), **settings: Any) -> AsyncIterator[Ground]:
    api = FakeApi(KEY)
    driver = MemoryDriver(folder, own_network=True)
    await driver.open()
    await driver.start("relay", CHAT.digest)
    try:
        async with serve(api.app()) as url:
            given = {"data_dir": folder, "anthropic_base_url": url, "anthropic_api_key": KEY, **settings}
            read = Settings(_env_file=None, **given)  # type: ignore[call-arg]
            tokens = make_agent_tokens(read, SECRET_OF_SERVICE)
            relay = await asyncio.to_thread(make_relay, read, McpServers(servers), tokens)
            machine = await connect(driver, "relay")
            async with tokens, relay, relay.attached(CHAT, machine), tokens.running(CHAT, "agent-0"):
                names = tuple(server.name for server in servers)
                given_pass = tokens.issue(CHAT, AgentToken("agent-0", int(time.time()) + 3600, names))
                yield Ground(machine, api, relay._purses, f"-H 'x-api-key: {given_pass}'")  # type: ignore[arg-type]
            machine.close()
    finally:
        await driver.delete("relay")


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground_of(tmp_path) as made:
        yield made


async def test_a_call_is_forwarded_and_counted(ground: Ground) -> None:
    ground.api.script = [Say("hello", tokens=1000)]
    answer = await ground.ask()
    assert "hello" in answer
    assert answer.endswith("\n200")
    assert ground.api.headers[0]["x-api-key"] == KEY
    assert await ground.purses.spent(CHAT) == SpentBudget(dollars=(100 * 2 + 1000 * 10) / 1e6, requests=1, tokens=1100)


async def test_one_connection_serves_many_calls(ground: Ground) -> None:
    said = await ground.shell(
        f'curl -sS -v {ground.headers} -d \'{{"model": "m"}}\' {MESSAGES} --next {ground.headers} '
        f'-d \'{{"model": "m"}}\' {MESSAGES} 2>&1'
    )
    assert said.count("HTTP/1.1 200") == 2
    assert re.search(r"Re-?using existing", said)  # as curls of different age say it


async def test_only_known_headers_pass(ground: Ground) -> None:
    await ground.ask("-H 'Cookie: a=b' -H 'X-Forwarded-For: 1.2.3.4' -H 'anthropic-beta: x' -H 'Host: evil.example'")
    seen = ground.api.headers[0]
    assert seen["anthropic-beta"] == "x"
    assert "cookie" not in seen
    assert "x-forwarded-for" not in seen
    assert seen["host"].startswith("127.0.0.1:")


async def test_an_answer_that_is_not_heard_out_is_paid_for(ground: Ground) -> None:
    ground.api.script = [Break()]
    await ground.ask()
    spent = await ground.purses.spent(CHAT)
    assert spent.requests == 1
    assert spent.tokens > 100


async def test_an_unreachable_api_is_told_and_may_be_tried_again(tmp_path: Path) -> None:
    async with ground_of(tmp_path, anthropic_base_url="http://127.0.0.1:9") as ground:
        said = await ground.ask("-i")
    assert "502" in said.splitlines()[0]
    assert "x-should-retry: true" in said


async def test_a_caller_that_goes_away_takes_its_call_along(ground: Ground) -> None:
    ground.api.script = [Wait(600), Say("late")]
    asking = asyncio.create_task(ground.ask())
    await asyncio.wait_for(ground.api.asked.wait(), 60)
    await ground.shell("pkill -x curl")
    await asking
    async with asyncio.timeout(60):
        while not (await ground.purses.spent(CHAT)).requests:
            await asyncio.sleep(0.1)
    assert (await ground.purses.spent(CHAT)).tokens == 0


@pytest.mark.parametrize(
    "setting",
    [
        {"sub_agent_max_requests": 1},
        {"sub_agent_max_tokens": 50},
        {"sub_agent_budget_usd": 0.0001},
        {"sub_agent_tenant_max_requests": 1},
        {"sub_agent_tenant_max_tokens": 50},
        {"sub_agent_tenant_budget_usd": 0.0001},
    ],
)
async def test_each_limit_of_the_chat_and_of_its_tenant_holds(tmp_path: Path, setting: dict[str, Any]) -> None:
    async with ground_of(tmp_path, **setting) as ground:
        assert (await ground.ask()).endswith("\n200")
        refused = await ground.ask()
    assert refused.endswith("\n402")
    assert next(iter(setting)).upper() in refused
    assert len(ground.api.requests) == 1


async def test_the_words_of_an_api_that_refuses_the_key_stay_outside(ground: Ground) -> None:
    ground.api.script = [Refuse(401, "authentication_error", f"your key {KEY} is wrong")]
    answer = await ground.ask()
    assert answer.endswith("\n401")
    assert KEY not in answer
    assert "ANTHROPIC_API_KEY" in answer


async def test_garbage_is_refused_and_takes_nobody_along(ground: Ground) -> None:
    port = ADDRESS.rpartition(":")[2]
    talk = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'rubbish\\r\\n\\r\\n' >&3; timeout 60 cat <&3"
    assert "400" in await ground.shell(talk)
    long = f"head -c 70000000 /dev/zero | curl -sS -o /dev/null -w '%{{http_code}}' {ground.headers} --data-binary @- "
    assert await ground.shell(f"{long} -H 'Expect:' {MESSAGES} 2>&1 | tail -c 3") in ("400", "55)", "ipe", "eer")
    assert (await ground.ask()).endswith("\n200")


async def test_no_path_that_must_be_interpreted_passes(tmp_path: Path) -> None:
    """What a server behind the gateway could read as another path than the one that was looked up."""
    server = McpServer("vault", "http://127.0.0.1:9/mcp")
    async with ground_of(tmp_path, (server,), gemini_api_key="key", openai_api_key="key") as ground:
        calls = "".join(
            f"curl -sS --path-as-is -X {method} {ground.headers} '{ADDRESS}{path}'; echo; "
            for method in ("GET", "POST")
            for path in INTERPRETED
        )
        said = (await ground.shell(calls)).splitlines()
    assert len(said) == 2 * len(INTERPRETED)
    assert all("Agents may not make this call." in line for line in said), said


async def test_a_server_of_other_tenants_is_not_reached_even_with_a_token_that_names_it(tmp_path: Path) -> None:
    """The registry may have changed since the token was made."""
    server = McpServer("vault", "http://127.0.0.1:9/mcp", tenants=frozenset({"acme"}))
    async with ground_of(tmp_path, (server,)) as ground:
        said = await ground.shell(f"curl -sS {ground.headers} -d '{{}}' {ADDRESS}/mcp/vault")
    assert "was not given an MCP server of this name" in said


async def test_posts_to_an_sse_server_go_only_where_an_open_stream_said(tmp_path: Path) -> None:
    async with vault("sse") as url:
        server = McpServer("vault", url, (("Authorization", f"Bearer {SECRET}"),), sse=True)
        async with ground_of(tmp_path, (server,)) as ground:
            post = f"curl -sS -o /dev/null -w '%{{http_code}} ' {ground.headers} -H 'content-type: application/json'"
            ping = """ -d '{"jsonrpc": "2.0", "id": 1, "method": "ping"}' """
            at = f"{ADDRESS}/mcp/vault"
            said = await ground.shell(f"""
                {post} {ping} {at}; {post} {ping} {at}/guess; {post} {ping} {at}/messages/
                curl -sSN {ground.headers} {at} > stream & until grep -qs data: stream; do sleep 0.1; done
                place=$(sed -n 's/^data: //p' stream | head -n 1)
                {post} {ping} {ADDRESS}$place; kill %1; wait
                for i in $(seq 300); do said=$({post} {ping} {ADDRESS}$place); [ $said = 405 ] && break; sleep 0.1; done
                echo $said; cat stream
            """)
    codes, stream = said.split("\n", 1)
    assert codes.split() == ["405", "405", "405", "202", "405"], said
    assert "data: /mcp/vault/" in stream
    assert "/messages" not in stream
    assert SECRET not in stream


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 50,
        b"[]",
        b'{"dollars": NaN, "requests": 1, "tokens": 1}',
        b'{"dollars": -9, "requests": 1, "tokens": 1}',
    ],
)
async def test_a_budget_record_that_cannot_be_read_is_set_aside(tmp_path: Path, content: bytes) -> None:
    purses = BudgetStore(tmp_path, BudgetLimits(requests=5))
    purses.open()
    (tmp_path / CHAT.digest).write_bytes(content)
    assert await purses.spent(CHAT) == SpentBudget()
    await purses.begin(CHAT)
    await purses.save(CHAT)
    (aside,) = tmp_path.glob("*.unreadable-*")
    assert aside.read_bytes() == content
    assert await BudgetStore(tmp_path, BudgetLimits()).spent(CHAT) == SpentBudget(requests=1)


async def test_a_removed_chat_leaves_no_budget_even_while_a_call_is_under_way(tmp_path: Path) -> None:
    purses = BudgetStore(tmp_path, BudgetLimits(requests=1))
    purses.open()
    await purses.begin(CHAT)
    await purses.save(CHAT)
    await purses.forget(CHAT)
    purses.count(CHAT, "claude-sonnet-5-5", TokenUsage(input=5))
    await purses.save(CHAT)
    assert [path.name for path in tmp_path.iterdir()] == ["tenants"]
    assert (await purses.spent_by(CHAT.tenant)).tokens == 5
    await purses.begin(CHAT)


async def test_a_budget_outlives_a_jump_of_the_clock(tmp_path: Path) -> None:
    purses = BudgetStore(tmp_path, BudgetLimits(requests=1))
    purses.open()
    await purses.begin(CHAT)
    await purses.save(CHAT)
    os.utime(tmp_path / CHAT.digest, (0, 0))
    after = BudgetStore(tmp_path, BudgetLimits(requests=1))
    after.open()
    assert (await after.spent(CHAT)).requests == 1
