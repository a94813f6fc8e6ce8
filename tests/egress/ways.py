"""The ways by which a caller speaks HTTP to the proxy: to it as a proxy, inside TLS that it ends, and redirected to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.network import NetworkMode
from cubicle.egress.handler import ConnectionHandler
from cubicle.egress.http_proxy import HttpProxy
from cubicle.egress.meter import Quota
from cubicle.egress.policy import Policy, Scheme, Target
from cubicle.egress.rules_file import RulesFile
from cubicle.egress.streams import Inside
from cubicle.egress.tls_authority import Authority
from cubicle.egress.upstream import UpstreamDialler
from cubicle.egress.upstream_connections import EgressLimits, UpstreamConnections
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream
from tests.egress.conftest import CHAT, Behind, names
from tests.egress.servers import Server, http_server

SECRET = "Bearer hunter2"
WAYS = ("proxy", "tls", "captive")


@dataclass(frozen=True)
class Way:
    """One of them, and where it leads."""

    kind: str
    proxy: int
    port: int
    trust: ssl.SSLContext

    def url(self, path: str) -> str:
        """What a request names: a proxy is told where to, too."""
        return f"http://api.test:{self.port}{path}" if self.kind == "proxy" else path

    @property
    def host(self) -> str:
        return f"api.test:{self.port}"

    @asynccontextmanager
    async def call(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy)
        try:
            if self.kind == "tls":
                writer.write(f"CONNECT {self.host} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await writer.start_tls(self.trust, server_hostname="api.test")
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def say(self, request: bytes) -> bytes:
        """All that comes back until the proxy hangs up."""
        async with asyncio.timeout(60), self.call() as (reader, writer):
            writer.write(request)
            return await reader.read()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Vouches for the servers of the test."""
    authority = Authority(tmp_path / "public-authority")
    authority.open()
    return authority


@pytest.fixture
def trust(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


@pytest.fixture
def server(kind: str, tmp_path: Path, authority: Authority) -> Iterator[Server]:
    with http_server(tmp_path, tls=authority.context("api.test") if kind == "tls" else None) as running:
        yield running


@asynccontextmanager
async def opened(
    kind: str, behind: Behind, folder: Path, port: int, trust: ssl.SSLContext, **fields: Any
) -> AsyncIterator[Way]:
    """A way to a server, by a rule that lets few requests through and adds a secret to them."""
    rule = {
        "name": "reading",
        "hosts": ["api.test"],
        "addresses": ["127.0.0.0/8"],
        "scheme": "https" if kind == "tls" else "http",
        "methods": ["GET", "PUT"],
        "paths": ["/echo", "/upgrade", "/socket"],
        "inject": {"Authorization": SECRET},
        **fields,
    }
    rules = folder / "rules.json"
    rules.write_text(json.dumps({"mode": "allowlist", "rules": [rule]}))
    rules.chmod(0o600)
    async with AsyncExitStack() as stack:
        machine = await stack.enter_async_context(behind(rules=rules, trust=trust))
        proxy = int(machine.environment["HTTP_PROXY"].rpartition(":")[2])
        if kind == "captive":
            proxy = await stack.enter_async_context(redirected(machine, rules, Target.parse("api.test", port)))
        authority = Authority(folder / "egress")
        await asyncio.to_thread(authority.open)
        yield Way(kind, proxy, port, ssl.create_default_context(cadata=authority.pem.decode()))


@asynccontextmanager
async def redirected(
    machine: Machine, rules: Path | None, target: Target, policy: Policy | None = None
) -> AsyncIterator[int]:
    """A port of the sandbox whose callers are served as the transparent proxy's are that want to go to this target."""
    rulebook = RulesFile(rules, policy or Policy(NetworkMode.ALLOWLIST))
    await rulebook.open()
    parts = (CHAT, rulebook, UpstreamDialler(names, 15), Quota(), EgressLimits(), None, lambda _: None)
    gate, upstreams = ConnectionHandler(*parts), UpstreamConnections(*parts)

    async def serve(stream: Stream) -> None:
        inside = Inside(stream)
        with suppress(OSError, EOFError):
            await HttpProxy(upstreams, gate.tunnel, inside, target, Scheme.HTTP, "captive").serve()
            await inside.linger()

    async with machine.listen(0, serve) as port:
        yield port
