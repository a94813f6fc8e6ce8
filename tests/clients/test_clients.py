"""Clients of other makers: the Python SDK in both eras, the TypeScript SDK, the Inspector."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.clients.conftest import Node
from tests.support.service import Options, Service, service_of

TOOLS = ["bash_tool", "view", "create_file", "str_replace", "sub_agent"]
INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
async def test_the_python_sdk(service: Service, mode: Any, version: str) -> None:
    seen: list[str | None] = []

    async def progress(_progress: float, _total: float | None, message: str | None) -> None:
        seen.append(message)

    async with httpx2.AsyncClient(headers={"X-Chat-Id": f"python-{mode}"}, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(f"{service.url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            assert client.protocol_version == version
            assert client.instructions == f"You work in chat python-{mode} for None."
            assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
            arguments = {"command": "echo a; sleep 0.4; echo b", "description": "test"}
            result = await client.call_tool("bash_tool", arguments, progress_callback=progress)  # type: ignore[arg-type]
            assert result.content[0].text == "a\nb\n"  # type: ignore[union-attr]
            assert "".join(message or "" for message in seen) == "a\nb\n"
            assert (await client.list_resources()).resources == []


@pytest.mark.real
async def test_the_typescript_sdk(service: Service, node: Node) -> None:
    code, output = await node("typescript.mjs", URL=f"{service.url}/mcp", limit=150)
    assert code == 0, output
    seen = json.loads(output.strip().splitlines()[-1])
    assert len(seen["session"]) == 36
    assert seen["instructions"] == "You work in chat typescript for None."
    assert seen["version"]["name"] == "cubicle"
    assert seen["tools"] == TOOLS
    assert seen["answer"]["content"] == [{"type": "text", "text": "a\nb\n"}]
    assert "".join(seen["progress"]) == "a\nb\n"
    assert seen["resources"] == []
    assert seen["cancelled"] is True
    assert seen["left"] == "(no output)"
    assert seen["code"] == -32602


@pytest.mark.real
async def test_the_inspector(service: Service, node: Node) -> None:
    address = ["--cli", f"{service.url}/mcp", "--transport", "http", "--header", "X-Chat-Id: inspector"]
    code, output = await node("node_modules/.bin/mcp-inspector", *address, "--method", "tools/list", limit=150)
    assert code == 0, output
    assert [tool["name"] for tool in json.loads(output)["tools"]] == TOOLS
    call = ["--method", "tools/call", "--tool-name", "bash_tool", "--tool-arg", "command=echo hi", "description=test"]
    code, output = await node("node_modules/.bin/mcp-inspector", *address, *call, limit=150)
    assert code == 0, output
    assert json.loads(output)["content"][0]["text"] == "hi\n"


KEY = "a-key-for-the-clients"
REFUSALS = [
    ({"X-Chat-Id": "reason"}, "The key is missing or wrong"),
    ({"Authorization": f"Bearer {KEY}", "X-Chat-Id": "a/b"}, "A chat id is 1 to 128 characters"),
    ({"Authorization": f"Bearer {KEY}"}, "X-Chat-Id"),
]
"""Headers, and what a person is to read."""


def leaf(error: BaseException) -> BaseException:
    """The error itself: the SDK's task groups wrap it."""
    return leaf(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize(("headers", "reason"), REFUSALS)
async def test_the_python_sdk_shows_why_it_was_refused(
    service: Service, mode: Any, headers: dict[str, str], reason: str
) -> None:
    options = Options({"mcp_api_key": KEY, "single_user_mode": "false"})
    async with (
        service_of(service.fleet, options) as strict,
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
    ):
        said = ""
        try:
            async with Client(streamable_http_client(f"{strict.url}/mcp", http_client=http), mode=mode):
                pytest.fail("it was let in")
        except* MCPError as errors:
            said = str(leaf(errors))
        assert reason in said


@pytest.mark.real
@pytest.mark.parametrize("client", ["sdk", "client"])
async def test_the_typescript_sdks_show_why_they_were_refused(service: Service, node: Node, client: str) -> None:
    options = Options({"mcp_api_key": KEY, "single_user_mode": "false"})
    async with service_of(service.fleet, options) as strict:
        for headers, reason in REFUSALS:
            url = f"{strict.url}/mcp"
            code, output = await node("refused.mjs", URL=url, HEADERS=json.dumps(headers), SDK=client, limit=150)
            assert code == 0, output
            assert reason in json.loads(output.strip().splitlines()[-1])["message"]
