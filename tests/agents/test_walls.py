"""Credentials stay outside of the sandbox, whatever the agent or its neighbours try."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agents.conftest import agents_service, emptied
from tests.agents.fake_api import FakeApi, Say, Use
from tests.agents.test_claude import bash
from tests.agents.vault import SECRET, registry, vault
from tests.support.service import Service, text

pytestmark = [pytest.mark.oci, pytest.mark.timeout(600), pytest.mark.real]

RELAY = "http://127.0.0.1:3129"


@pytest.mark.parametrize("transport", ["http", pytest.param("sse", marks=pytest.mark.long)])
async def test_an_mcp_server_is_passed_on_and_used_without_its_credential(
    tmp_path: Path, api: FakeApi, api_url: str, transport: str
) -> None:
    api.script = [Use("mcp__vault__open_vault", {"drawer": "third"}), Say("It is open."), Say("Done.")]
    async with vault(transport) as url, emptied(tmp_path / "s"):
        servers = {"vault": {"type": transport, "url": url, "headers": {"Authorization": f"Bearer {SECRET}"}}}
        servers["self"] = {"url": "http://localhost:8081/mcp"}
        file = registry(tmp_path, servers)
        async with agents_service(tmp_path / "s", api_url, mcp_servers_file=file) as service:
            result = await service.call("sub_agent", {"prompt": "Open it."}, headers={"X-MCP-Servers": "vault"})
            assert text(result).startswith("It is open."), result
            assert "is a golden egg" in json.dumps(api.requests[-1]["messages"])
            result = await service.call("sub_agent", {"prompt": "x"}, headers={"X-MCP-Servers": "vault,nope,self"})
            assert not result["isError"], result
            assert "[MCP servers left out: unknown to this service: nope, self (known: vault)]" in text(result)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST /anthropic/v1/messages", 401),
        ("GET /anthropic/v1/organizations/api_keys", 401),
        ("POST /mcp/vault", 401),
    ],
)
async def test_who_has_no_pass_gets_nothing(service: Service, api: FakeApi, request_line: str, status: int) -> None:
    method, path = request_line.split()
    command = f"curl -s -o /dev/null -w %{{http_code}} -X {method} {RELAY}{path} -H 'x-api-key: guess' -d '{{}}'"
    assert await service.bash(command, chat="walls") == str(status)
    assert not api.requests


async def test_a_pass_opens_only_the_calls_on_the_list(service: Service, api: FakeApi) -> None:
    paths = ("/v1/messages/batches", "/v1/files", "/../v1/messages", "//evil.example/v1/messages", "/v1/messages/x")
    calls = "; ".join(
        f'curl -s --path-as-is -o /dev/null -w "%{{http_code}} " -d "{{}}" -H "x-api-key: $ANTHROPIC_AUTH_TOKEN" '
        f"{RELAY}/anthropic{path}"
        for path in paths
    )
    other = f'curl -s -o /dev/null -w "%{{http_code}}" -d "{{}}" -H "x-api-key: $ANTHROPIC_AUTH_TOKEN" {RELAY}'
    api.script = [bash(f"({calls}; {other}/openai/responses; echo) > ~/codes; echo $ANTHROPIC_AUTH_TOKEN > ~/pass")]
    api.script.append(Say("done"))
    result = await service.call("sub_agent", {"prompt": "Try."}, chat="walls")
    assert text(result).startswith("done")
    assert await service.bash("cat ~/codes", chat="walls") == "404 404 404 404 404 404\n"
    stolen = (await service.bash("cat ~/pass", chat="walls")).strip()
    answer = await service.bash(f"curl -s -d '{{}}' -H 'x-api-key: {stolen}' {RELAY}/anthropic/v1/messages", chat="b")
    assert "serves the agents of this sandbox only" in answer
