"""The configurations of docs/clients.md, word for word, in the programs that they are for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import PROGRAMS, program
from tests.agents.fake_api import FakeApi, Say, Use
from tests.agents.fake_others import FakeResponses
from tests.clients.conftest import HERE
from tests.support.service import Options, Service, fleet_of, serve, service_of

KEY = "key-of-the-service"
BEARER = {"Authorization": f"Bearer {KEY}"}
PAGE = (HERE.parent.parent / "docs" / "clients.md").read_text()
COMMAND = "echo made by it | tee ~/made"

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    options = Options({"mcp_api_key": KEY})
    async with fleet_of(tmp_path_factory.mktemp("fleet")) as fleet, service_of(fleet, options) as service:
        yield service


def documented(section: str, language: str, service: Service) -> str:
    """The first block of that kind in a section of the page, with the address of this service."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"docs/clients.md has no {language} for {section}"
    return found[1].replace("http://127.0.0.1:8081", service.url)


@dataclass
class Home:
    """A user's home folder on this machine, and the programs run in it."""

    path: Path
    environment: dict[str, str]

    async def run(self, *command: str, limit: float = 250) -> str:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "CLAUDE"))},
            "HOME": str(self.path),
            "NO_PROXY": "*",
            "CUBICLE_KEY": KEY,
            "DISABLE_AUTOUPDATER": "1",
            "MCP_TIMEOUT": "200000",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
            "OPENAI_API_KEY": KEY,
            **self.environment,
        }
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.path,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(limit):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, output.decode(errors="replace")[-3000:]
        return output.decode(errors="replace")


async def made(service: Service, chat: str) -> str:
    return await service.bash("cat ~/made; rm ~/made", chat=chat, headers=BEARER)


async def test_claude_code_added_by_its_command(service: Service, tmp_path: Path) -> None:
    folder = str((PROGRAMS / program("claude")).parent)
    home = Home(tmp_path, {"PATH": f"{folder}:{os.environ['PATH']}"})
    await home.run("bash", "-c", documented("Claude Code", "sh", service))
    assert "Connected" in await home.run("claude", "mcp", "list")


async def test_claude_code_with_a_file_of_the_project(service: Service, tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text(documented("Claude Code", "json", service))
    arguments = {"command": COMMAND, "description": "make it"}
    api = FakeApi(KEY, [Use("mcp__cubicle__bash_tool", arguments), Say("It is made.")])
    async with serve(api.app()) as url:
        home = Home(tmp_path, {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY})
        tools = ["--allowedTools", "mcp__cubicle__bash_tool"]
        said = await home.run(str(PROGRAMS / program("claude")), "-p", "Make it.", "--mcp-config", ".mcp.json", *tools)
    assert "It is made." in said
    assert "made by it" in str(api.requests[-1]["messages"])
    assert await made(service, "my-project") == "made by it\n"


async def test_codex(service: Service, tmp_path: Path) -> None:
    call = f"const r = await tools.mcp__cubicle__bash_tool({{command: '{COMMAND}', description: 'make it'}});"
    api = FakeResponses(KEY, [Use("exec", {"raw": f"{call} text(JSON.stringify(r))"}), Say("It is made.")])
    folder = tmp_path / ".codex"
    folder.mkdir()
    async with serve(api.app()) as url:
        provider = f'model_provider = "fake"\n[model_providers.fake]\nname = "fake"\nbase_url = "{url}"\n'
        provider += 'env_key = "OPENAI_API_KEY"\nwire_api = "responses"\n\n'
        (folder / "config.toml").write_text(provider + documented("Codex", "toml", service))
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        free += ["-c", "mcp_servers.cubicle.startup_timeout_sec=200"]  # a busy machine is no failure
        said = await Home(tmp_path, {}).run(str(PROGRAMS / program("codex")), "exec", *free, "Make it.")
    assert "It is made." in said
    assert "made by it" in str(api.requests[-1]["input"]), api.requests[-1]["input"]
    assert await made(service, "my-project") == "made by it\n"


async def test_claude_desktop_through_its_bridge(service: Service, node_program: str, tmp_path: Path) -> None:
    """What the desktop program does: it starts the command and speaks MCP on its standard input and output."""
    entry = json.loads(documented("Claude Desktop", "json", service))["mcpServers"]["cubicle"]
    assert (entry["command"], entry["args"][:2]) == ("npx", ["-y", "mcp-remote"])
    command = [node_program, str(HERE / "node_modules/mcp-remote/dist/proxy.js"), *entry["args"][2:]]
    given = {name: value.replace("KEY", KEY) for name, value in entry["env"].items()}
    bridge = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), **given},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(250):
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            started = await ask(bridge, 1, "initialize", hello)
            assert started["result"]["instructions"] == "You work in chat desktop for None."
            arguments = {"command": COMMAND, "description": "make it"}
            await ask(bridge, 2, "tools/call", {"name": "bash_tool", "arguments": arguments})
    finally:
        with contextlib.suppress(ProcessLookupError):
            bridge.kill()
        await bridge.wait()
    assert await made(service, "desktop") == "made by it\n"


async def ask(bridge: asyncio.subprocess.Process, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    assert bridge.stdin
    assert bridge.stdout
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    bridge.stdin.write(json.dumps(message).encode() + b"\n")
    while line := await bridge.stdout.readline():
        answer: dict[str, Any] = json.loads(line)
        if answer.get("id") == number:
            return answer
    raise AssertionError("the bridge ended")
