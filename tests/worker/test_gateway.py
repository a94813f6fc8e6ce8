"""The coding agents' gateway in the network worker: tokens, budgets, and callers that send without end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.agents.agent_token import RUN_ENDED, AgentToken
from cubicle.agents.budget import BudgetLimits as Budget
from cubicle.agents.gateway import ADDRESS, PORT
from cubicle.agents.upstreams import apis
from cubicle.core.chat import Chat
from cubicle.machine.machine import Machine
from cubicle.settings import Settings
from cubicle.worker.channel import ControlChannel, channel_pair
from cubicle.worker.remote import Service
from tests.agents.conftest import KEY
from tests.agents.fake_api import FakeApi, Hold, Say, Wait
from tests.support.service import serve
from tests.worker.conftest import CHAT, OTHER, Ground, ground_of, shell, until
from tests.worker.test_floods import memory_of
from tests.worker.test_network import AGAIN, kill

pytestmark = pytest.mark.anyio

MESSAGES = f"{ADDRESS}/anthropic/v1/messages"
BODY = '{"model": "claude-sonnet-5-5", "messages": [], "tools": [1]}'

# Sends a whole request, and then without end, while the API takes its time.
EARLY = r"""
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
body = sys.argv[3].encode()
head = "POST /anthropic/v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\nContent-Length: %d\r\n\r\n"
sock.sendall((head % (sys.argv[2], len(body))).encode() + body)
sent = 0
try:
    while sent < 500 << 20:
        sent += sock.send(b"x" * (1 << 20))
except OSError:
    pass
print(sent)
"""


RUN = "agent-0"


def token(ground: Ground, chat: Chat) -> str:
    return ground.tokens.issue(chat, AgentToken(RUN, int(time.time()) + 3600))


async def ask(ground: Ground, machine: Machine, chat: Chat, options: str = "") -> str:
    return await shell(
        machine,
        f"curl -sS --max-time 60 -w '\\n%{{http_code}}' {options} -H 'x-api-key: {token(ground, chat)}' -d '{BODY}' {MESSAGES}",
    )


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(KEY)


@pytest.fixture
async def ground(tmp_path: Path, api: FakeApi) -> AsyncIterator[Ground]:
    async with serve(api.app()) as url:
        settings = Settings(_env_file=None, anthropic_base_url=url, anthropic_api_key=KEY)  # type: ignore[call-arg]
        async with ground_of(tmp_path, apis=apis(settings), budget=Budget(requests=2)) as made:
            yield made


async def test_a_call_reaches_the_api_and_the_service_keeps_the_budget(ground: Ground, api: FakeApi) -> None:
    machine, other = await ground.machine(CHAT), await ground.machine(OTHER)
    async with ground.tokens.running(CHAT, RUN), ground.tokens.running(OTHER, RUN):
        assert (await ask(ground, machine, CHAT)).endswith("200")
        assert api.headers[0]["x-api-key"] == KEY
        assert (await ask(ground, machine, OTHER)).endswith("401"), "a token of another chat"
        spent = await ground.network.budgets.spent(CHAT)
        assert (spent.requests, spent.tokens > 0) == (1, True)
        await kill(ground)
        assert (await ask(ground, machine, CHAT, AGAIN)).endswith("200")
        refused = await ask(ground, machine, CHAT)
        assert refused.endswith("402")
        assert "has made all its 2 model calls" in json.loads(refused.rpartition("\n")[0])["error"]["message"]
        assert (await ask(ground, other, OTHER)).endswith("200")


async def test_a_token_that_ends_takes_the_call_along_that_is_under_way(ground: Ground, api: FakeApi) -> None:
    api.script = [Hold("half")]
    machine = await ground.machine()
    async with ground.tokens.running(CHAT, RUN):
        asking = asyncio.create_task(ask(ground, machine, CHAT))
        async with asyncio.timeout(60):
            await api.holding.wait()
    said = await asking
    assert "curl: (18)" in said or "curl: (52)" in said, "the answer breaks off, or none of it had come yet"
    assert RUN_ENDED in await ask(ground, machine, CHAT)
    assert not ground.network._answers._uses


async def test_calls_that_are_over_before_the_service_hears_of_them_leave_nothing_behind(ground: Ground) -> None:
    """A busy service finds the beginning and the end of a short call together."""
    ours, theirs = channel_pair()
    answers = ControlChannel(ours, ground.network._answers.handlers(asyncio.Event()))
    asks = ControlChannel(theirs, {})
    service = Service(asks)
    async with ground.tokens.running(CHAT, RUN):
        given = ground.tokens.check(CHAT, token(ground, CHAT))
        for _ in range(2100):
            with service.using(CHAT, given):
                await asyncio.sleep(0)  # its beginning is sent, and is not read yet
            await asyncio.sleep(0)
        await until(lambda: not ground.network._answers._uses, 5)
        assert not answers.closed.is_set(), "the service has hung up on a worker that did nothing wrong"
    asks.close()
    answers.close()


async def test_a_caller_that_sends_before_it_has_its_answer_is_cut_off(ground: Ground, api: FakeApi) -> None:
    api.script = [Wait(3600), Say("never")]
    machine = await ground.machine()
    worker = ground.network.pid
    assert worker is not None
    before = memory_of(worker)
    async with ground.tokens.running(CHAT, RUN):
        sent = await shell(machine, f"python3 -c '{EARLY}' {PORT} {token(ground, CHAT)} '{BODY}'")
    assert 0 < int(sent) < 50 << 20
    assert memory_of(worker) - before < 60 << 20
