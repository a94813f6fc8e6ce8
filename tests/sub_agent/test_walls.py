"""Credentials stay outside of the sandbox, whatever the agent or its neighbours try."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer

from tests.service import Service, serve, text
from tests.sub_agent.conftest import KEY, agents_service, emptied
from tests.sub_agent.fake_api import FakeApi, Say, Use
from tests.sub_agent.test_claude import bash, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.real]

SECRET = "mcp-secret-that-stays-outside"
RELAY = "http://127.0.0.1:3129"


@asynccontextmanager
async def vault() -> AsyncIterator[str]:
    """An MCP server that wants a credential; its address."""
    server = MCPServer("vault")

    @server.tool()
    def open_vault(drawer: str) -> str:
        """Say what is in a drawer."""
        return f"In the drawer {drawer} is a golden egg."

    app = server.streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"]).get(b"authorization") == f"Bearer {SECRET}".encode():
            await app(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async with app.router.lifespan_context(app), serve(guarded) as url:
        yield f"{url}/mcp"


def registry(folder: Path, servers: dict[str, Any]) -> Path:
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


async def test_an_mcp_server_is_passed_on_and_used_without_its_credential(
    tmp_path: Path, api: FakeApi, api_url: str
) -> None:
    api.script = [Use("mcp__vault__open_vault", {"drawer": "third"}), bash("tail -f /dev/null"), Say("never said")]
    async with vault() as url, emptied(tmp_path / "s"):
        servers = {"vault": {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {SECRET}"}}}
        servers["self"] = {"url": "http://localhost:8081/mcp"}
        file = registry(tmp_path, servers)
        async with agents_service(tmp_path / "s", api_url, mcp_servers_file=file) as service:
            names = {"X-MCP-Servers": "vault"}
            run = asyncio.create_task(service.call("sub_agent", {"prompt": "Open it."}, headers=names))
            await until(service, "pgrep -fx 'tail -f /dev/null'", "test")
            assert "is a golden egg" in json.dumps(api.requests[-1]["messages"])
            assert not await found(service, SECRET, tmp_path / "s")
            result = await service.call("sub_agent", {"prompt": "x"}, headers={"X-MCP-Servers": "vault,nope,self"})
            assert result["isError"]
            assert "unknown servers: nope, self. Known: vault." in text(result)
            run.cancel()


async def test_the_key_is_nowhere_in_the_sandbox_during_a_run(service: Service, api: FakeApi) -> None:
    api.script = [bash("tail -f /dev/null"), Say("never said")]
    run = asyncio.create_task(service.call("sub_agent", {"prompt": "Stay."}, chat="walls"))
    await until(service, "pgrep -fx 'tail -f /dev/null'", "walls")
    assert api.headers[-1]["x-api-key"] == KEY
    folder = service.settings.data_dir
    assert {kind for kind, _ in await found(service, "cubicle-", folder, "walls")} == {"environ", "memory", "file"}
    assert not await found(service, KEY, folder, "walls")
    run.cancel()


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


async def found(service: Service, needle: str, folder: Path, chat: str = "test") -> list[tuple[str, str]]:
    """Where in the sandbox a text is: environments, arguments and memory of its processes, and its files."""
    namespace = (await service.bash("readlink /proc/self/ns/pid", chat=chat)).strip()
    return await asyncio.to_thread(lambda: [*_in_processes(namespace, needle.encode()), *_in_files(folder, needle)])


def _in_processes(namespace: str, needle: bytes) -> Iterator[tuple[str, str]]:
    searched = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") != namespace:
                continue
            searched += 1
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            for kind in ("environ", "cmdline"):
                if needle in Path(f"/proc/{pid}/{kind}").read_bytes():
                    yield kind, command.decode(errors="replace")
            if _in_memory(pid, needle):
                yield "memory", command.decode(errors="replace")
    assert searched > 2, "no process of the sandbox was seen"


def _in_memory(pid: str, needle: bytes) -> bool:
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, mode, *_ = line.split()
            low, high = (int(part, 16) for part in span.split("-"))
            if "r" in mode and "w" in mode and high < 1 << 63:
                position = low
                while position < high:
                    try:
                        memory.seek(position)
                        chunk = memory.read(min(1 << 24, high - position))
                    except OSError:
                        break
                    if not chunk:
                        break
                    if needle in chunk:
                        return True
                    position += max(1, len(chunk) - len(needle)) if position + len(chunk) < high else len(chunk)
    return False


def _in_files(folder: Path, needle: str) -> Iterator[tuple[str, str]]:
    for path in (folder / "memory").rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and needle.encode() in path.read_bytes():
                yield "file", str(path)
