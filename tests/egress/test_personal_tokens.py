"""A user's own tokens, from the settings service, on the user's requests and on no other's."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.core.network import NetworkMode
from cubicle.egress.policy import Policy
from cubicle.prompt.settings_service import SettingsService
from cubicle.prompt.user_tokens import UserTokens
from tests.egress.conftest import CHAT, OPEN, Behind, shell
from tests.egress.test_secrets import World, world, write_rules

__all__ = ["world"]

TOKEN = "Basic personal-hunter2"
ADA = "ada@example.org"


def answer(request: httpx.Request) -> httpx.Response:
    tokens = [{"name": "forge", "host": "api.test", "value": TOKEN}, {"name": "bad", "host": "*", "value": "x"}]
    return httpx.Response(200, json={"tokens": tokens}) if request.url.path.endswith(ADA) else httpx.Response(404)


@pytest.fixture
def tokens() -> UserTokens:
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return UserTokens(SettingsService(client, "http://settings.test"))


@pytest.mark.parametrize(
    ("caller", "sent"),
    [
        (Caller(CHAT, email=ADA), TOKEN),
        (Caller(CHAT, email="bob@example.org"), None),
        (Caller(CHAT), None),
        (Caller(CHAT, shared=True, email=ADA), None),
        (Caller(Chat("another"), email=ADA), None),
    ],
    ids=["hers", "another-user", "nobody", "shared", "another-chat"],
)
async def test_a_token_goes_with_its_users_requests_only(
    behind: Behind, world: World, tmp_path: Path, tokens: UserTokens, caller: Caller, sent: str | None
) -> None:
    tokens.note(caller)
    rules = write_rules(tmp_path, inject={})
    async with behind(OPEN, rules=rules, trust=world.trust, additions=tokens.rules) as machine:
        said = await shell(machine, f"curl -skS https://api.test:{world.server.port}/echo")
        environment = await shell(machine, "env; cat /proc/self/environ | tr '\\0' '\\n'")
    assert json.loads(said)["headers"].get("authorization") == sent
    assert "hunter2" not in environment


async def test_a_token_opens_no_host_that_the_rules_close(behind: Behind, world: World, tokens: UserTokens) -> None:
    tokens.note(Caller(CHAT, email=ADA))
    async with behind(Policy(NetworkMode.OPEN), trust=world.trust, additions=tokens.rules) as machine:
        said = await shell(machine, f"curl -skS https://api.test:{world.server.port}/echo")
    assert "only a rule that names it could open it" in said
