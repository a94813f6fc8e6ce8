"""The operator's registry of MCP servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cubicle.agents.mcp_servers import McpServer, read_servers
from cubicle.settings import BadSettings

OWN = ("http://127.0.0.1:8081", "https://cubicle.example.org/base")


def file_of(folder: Path, content: Any) -> Path:
    path = folder / "servers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_servers_are_found_by_name(tmp_path: Path) -> None:
    web = {"type": "http", "url": "https://tools.example.org/mcp", "headers": {"Authorization": "Bearer x"}}
    old = {"type": "sse", "url": "https://tools.example.org/sse"}
    local = {"command": "npx", "args": ["-y", "thing"]}
    servers = read_servers(file_of(tmp_path, {"mcpServers": {"web": web, "local": local, "old": old}}), OWN)
    found, left_out = servers.chosen(["local", "web", "old"], "main")
    assert found == (
        McpServer("local", command=("npx", "-y", "thing")),
        McpServer("web", "https://tools.example.org/mcp", (("Authorization", "Bearer x"),)),
        McpServer("old", "https://tools.example.org/sse", sse=True),
    )
    assert left_out == ""


def test_servers_that_cannot_be_used_are_left_out_and_named(tmp_path: Path) -> None:
    listed = {"web": {"url": "https://a.example/mcp"}, "old": {"type": "sse", "url": "https://a.example/sse"}}
    servers = read_servers(file_of(tmp_path, {"mcpServers": listed}), OWN)
    found, left_out = servers.chosen(["other", "web", "old", "more"], "main", sse=False)
    assert [server.name for server in found] == ["web"]
    assert left_out == (
        "[MCP servers left out: unknown to this service: other, more (known: old, web); "
        "of the type sse, which the agent cannot use: old]"
    )


def test_a_server_can_be_some_tenants_only(tmp_path: Path) -> None:
    listed: dict[str, Any] = {"all": {"url": "https://a.example/mcp"}}
    listed["own"] = {"url": "https://b.example/mcp", "tenants": ["acme", "main"]}
    listed["nobody"] = {"command": "x", "tenants": []}
    servers = read_servers(file_of(tmp_path, {"mcpServers": listed}), OWN)
    for tenant in ("acme", "main"):
        found, left_out = servers.chosen(["own", "all"], tenant)
        assert [server.name for server in found] == ["own", "all"]
        assert left_out == ""
        assert servers.find("own", tenant) is not None
    found, left_out = servers.chosen(["own", "all", "nobody", "nope"], "ACME")
    assert [server.name for server in found] == ["all"]
    assert left_out == (
        "[MCP servers left out: unknown to this service: nope (known: all); not for the tenant ACME: own, nobody]"
    )
    assert servers.find("own", "ACME") is None


@pytest.mark.parametrize("tenants", ["acme", None, {}, [1], ["a b"], [""], ["*"], [["acme"]]])
def test_a_list_of_tenants_that_is_none_stops_the_start(tmp_path: Path, tenants: Any) -> None:
    listed = {"own": {"url": "https://b.example/mcp", "tenants": tenants}}
    with pytest.raises(BadSettings, match="`tenants` of own must be a list"):
        read_servers(file_of(tmp_path, {"mcpServers": listed}), OWN)


@pytest.mark.parametrize(
    "url",
    ["http://localhost:8081/mcp", "http://127.0.0.1:8081/mcp/computer_use", "https://cubicle.example.org:443/base/mcp"],
)
def test_the_service_is_never_offered_to_its_own_agents(tmp_path: Path, url: str) -> None:
    servers = read_servers(file_of(tmp_path, {"mcpServers": {"me": {"url": url}}}), OWN)
    found, left_out = servers.chosen(["me"], "main")
    assert found == ()
    assert "unknown to this service: me (known: none)" in left_out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "must be JSON of the form"),
        ({"servers": {}}, "must be JSON of the form"),
        ({"mcpServers": {"a b": {"url": "https://x"}}}, "is not a name"),
        ({"mcpServers": {"a": {"url": "ftp://x"}}}, "needs a `url`"),
        ({"mcpServers": {"a": {"url": "https://x", "type": "ws"}}}, "only http and sse can be relayed"),
        ({"mcpServers": {"a": {"command": "x", "env": {"KEY": "secret"}}}}, "no credential may be"),
        ({"mcpServers": {"a": {"url": "https://x", "headers": {"A": "b\nc"}}}}, "must be an object of texts"),
    ],
)
def test_a_bad_registry_stops_the_start_with_a_sentence(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BadSettings, match="MCP_SERVERS_FILE") as error:
        read_servers(file_of(tmp_path, content), OWN)
    assert message in str(error.value)
    assert "secret" not in str(error.value)
