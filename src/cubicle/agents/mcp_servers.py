"""The operator's registry of MCP servers that a caller may hand to a coding agent, by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cubicle.core.api_keys import is_tenant
from cubicle.core.bad_settings import BadSettings
from cubicle.core.chat import DEFAULT_TENANT

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MAX_SIZE = 1024 * 1024
_HTTP_KINDS = ("http", "streamable-http", "streamableHttp", "")


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server. Over HTTP its address and headers stay with the service; a command runs in the sandbox."""

    name: str
    url: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    sse: bool = False
    """Speaks the older transport: a stream of events and posts, each at an address of its own."""
    command: tuple[str, ...] = ()
    tenants: frozenset[str] | None = None
    """Whose callers may name it; None: everybody's."""

    def serves(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


class McpServers:
    """All servers of the registry, save the service itself."""

    def __init__(self, servers: Iterable[McpServer] = ()) -> None:
        self._servers = {server.name: server for server in servers}

    def find(self, name: str, tenant: str) -> McpServer | None:
        """The server of this name, if there is one for this tenant."""
        server = self._servers.get(name)
        return server if server is not None and server.serves(tenant) else None

    def chosen(self, names: Iterable[str], tenant: str, *, sse: bool = True) -> tuple[tuple[McpServer, ...], str]:
        """The servers of these names, in this order, and a sentence about those that cannot be used, if any.

        `sse`: whether those of the older transport can be.
        """
        wanted = list(names)
        known = [server for name in wanted if (server := self.find(name, tenant)) is not None]
        usable = tuple(server for server in known if sse or not server.sse)
        parts = []
        if unknown := [name for name in wanted if name not in self._servers]:
            there = ", ".join(sorted(name for name in self._servers if self.find(name, tenant))) or "none"
            parts.append(f"unknown to this service: {', '.join(unknown)} (known: {there})")
        if others := [name for name in wanted if name in self._servers and self.find(name, tenant) is None]:
            parts.append(f"not for the tenant {tenant}: {', '.join(others)}")
        if old := [server.name for server in known if server not in usable]:
            parts.append(f"of the type sse, which the agent cannot use: {', '.join(old)}")
        return usable, f"[MCP servers left out: {'; '.join(parts)}]" if parts else ""


def read_servers(path: Path | None, own_addresses: Iterable[str] = ()) -> McpServers:
    """The registry in the file. Raises BadSettings that says what is wrong in it."""
    if path is None:
        return McpServers()
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
        listed = json.loads(content)["mcpServers"] if len(content) <= _MAX_SIZE else None
    except OSError as error:
        raise BadSettings(f"MCP_SERVERS_FILE cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        listed = None
    if not isinstance(listed, dict):
        raise BadSettings('MCP_SERVERS_FILE must be JSON of the form {"mcpServers": {"name": {"url": "…"}}}.')
    own = {_place(address) for address in own_addresses}
    servers = [replace(_server(name, fields), tenants=_tenants(name, fields)) for name, fields in listed.items()]
    # An agent that could call this service could start agents without end.
    return McpServers(server for server in servers if not server.url or _place(server.url) not in own)


def _server(name: str, fields: Any) -> McpServer:
    if not _NAME.fullmatch(name):
        raise BadSettings(f"MCP_SERVERS_FILE: {name[:80]!r} is not a name: letters, digits, _ and -, at most 64.")
    if not isinstance(fields, dict):
        raise BadSettings(f"MCP_SERVERS_FILE: {name} must be an object.")
    if isinstance(fields.get("command"), str):
        return _local(name, fields)
    url, kind = fields.get("url") or fields.get("httpUrl"), fields.get("type", "")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise BadSettings(f"MCP_SERVERS_FILE: {name} needs a `url` that starts with https:// or http://.")
    if kind not in (*_HTTP_KINDS, "sse"):
        raise BadSettings(f"MCP_SERVERS_FILE: {name} has the type {kind!r}; only http and sse can be relayed.")
    return McpServer(name, url, _headers(name, fields.get("headers", {})), sse=kind == "sse")


def _local(name: str, fields: Mapping[str, Any]) -> McpServer:
    if fields.get("env"):
        raise BadSettings(
            f"MCP_SERVERS_FILE: {name} is a command with `env`. It would run in the sandbox, where no credential may "
            f"be: run the server elsewhere and give its `url`, or leave `env` out."
        )
    arguments = fields.get("args", [])
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
        raise BadSettings(f"MCP_SERVERS_FILE: `args` of {name} must be a list of texts.")
    return McpServer(name, command=(fields["command"], *arguments))


def _tenants(name: str, fields: Mapping[str, Any]) -> frozenset[str] | None:
    """A mistake stops the start: taken for nothing said, it would open the server to everybody."""
    if "tenants" not in fields:
        return None
    listed = fields["tenants"]
    if not isinstance(listed, list) or not all(isinstance(one, str) and is_tenant(one) for one in listed):
        raise BadSettings(
            f"MCP_SERVERS_FILE: `tenants` of {name} must be a list of names of API_KEYS_FILE; who shows MCP_API_KEY is "
            f"{DEFAULT_TENANT}."
        )
    return frozenset(listed)


def _headers(name: str, fields: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(fields, dict):
        pairs = tuple(fields.items())
        if all(isinstance(v, str) and (k + v).isascii() and (k + v).isprintable() for k, v in pairs):
            return pairs
    raise BadSettings(f"MCP_SERVERS_FILE: `headers` of {name} must be an object of texts.")


def _place(address: str) -> tuple[str, int]:
    """Host and port; the names of the loopback are one."""
    parts = urlsplit(address)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ("127.0.0.1" if host in ("localhost", "::1", "0.0.0.0") else host), port  # noqa: S104 — compared only
