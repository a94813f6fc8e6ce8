"""Attacks of a tenant who speaks the newer protocol of MCP, without a handshake: the SDK answers it, not our transport."""

from __future__ import annotations

import json

from tests.attacks.attacker import Attacker
from tests.attacks.client import post
from tests.attacks.table import attack
from tests.attacks.with_key import _many_uploads, _resource

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "attack", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def newer(method: str, params: dict[str, object], attacker: Attacker, *, ascii_only: bool = True) -> bytes:
    headers = [f"MCP-Protocol-Version: {VERSION}", f"Mcp-Method: {method}"]
    headers += [f"Mcp-Name: {params[name]}" for name in ("name", "uri") if name in params]
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    return post(json.dumps(body, ensure_ascii=ascii_only).encode(), attacker.key, attacker.chat, *headers)


@attack("200|429", "closed|no answer")
async def newer_large_arguments(attacker: Attacker) -> None:
    """Files of 50 MB as an argument, eight at a time."""
    arguments = {"description": "a", "path": "/tmp/large", "file_text": "a" * attacker.size(50_000_000)}
    data = newer("tools/call", {"name": "create_file", "arguments": arguments}, attacker)
    await attacker.repeat(8, lambda: attacker.once(data))


@attack("200|400|413|429", "closed|no answer")
async def newer_many_arguments(attacker: Attacker) -> None:
    """Arguments of many small values."""
    arguments = {"description": "a", "command": "true", "more": [[]] * attacker.size(90_000)}
    data = newer("tools/call", {"name": "bash_tool", "arguments": arguments}, attacker)
    assert len(json.dumps(arguments)) < 10_000_000
    await attacker.flood(8, data)


@attack("400|429", "closed|no answer")
async def newer_long_names(attacker: Attacker) -> None:
    """The name of an argument is 40 MB long."""
    name = "é" * attacker.size(20_000_000)
    arguments = {"description": "a", "command": "true", name: 1}
    data = newer("tools/call", {"name": "bash_tool", "arguments": arguments}, attacker, ascii_only=False)
    await attacker.repeat(4, lambda: attacker.once(data))


@attack("200|429", "no answer", prepare=lambda a: _resource(a))
async def newer_large_resources(attacker: Attacker) -> None:
    """A resource of 15 MB, read six at a time."""
    await attacker.flood(6, newer("resources/read", {"uri": f"file://uploads/{attacker.chat}/resource"}, attacker))


@attack("200|429", "no answer", prepare=lambda a: _many_uploads(a))
async def newer_resource_lists(attacker: Attacker) -> None:
    """A list of 10,000 uploads, again and again."""
    await attacker.flood(8, newer("resources/list", {}, attacker))


@attack("200")
async def newer_tool_lists(attacker: Attacker) -> None:
    await attacker.flood(20, newer("tools/list", {}, attacker))


@attack("400")
async def newer_unknown_tools(attacker: Attacker) -> None:
    data = newer("tools/call", {"name": "nothing", "arguments": {}}, attacker)
    await attacker.flood(20, data)
