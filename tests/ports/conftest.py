"""A whole service with two tenants and programs in its sandboxes, in a process of its own."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from cubicle import settings
from cubicle.chat.links import Links, kept_secret
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.images.store import ImageStore
from cubicle.ports.links import PortLinks
from tests.conftest import absent
from tests.drivers.makers import engine_runtimes, some_base
from tests.support.process import ServiceProcess, free_port

HERE = Path(__file__).parent
KEYS = {"main": "the-operators-key", "acme": "the-key-of-acme", "rival": "the-key-of-rival"}


@dataclass
class Ground:
    """A running service, and what it needs to know to make links as it does."""

    service: ServiceProcess
    links: PortLinks
    folder: Path
    keys: dict[str, str]
    driver: str
    relayed: bool = False
    """Whether bytes to a port go through the guest."""

    @property
    def port(self) -> int:
        return self.service.port

    def host(self, chat: Chat, port: int) -> str:
        return f"{port}-{self.links.id(chat)}.localhost:{self.port}"

    async def bash(self, chat: Chat, command: str) -> str:
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "bash_tool", "arguments": {"command": command, "description": "test"}},
        }
        headers = {"Accept": "application/json, text/event-stream", "X-Chat-Id": chat.id, **self.key(chat)}
        response = await self.service.client.post("/mcp", json=body, headers=headers)
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        result = json.loads(lines[-1] if lines else response.text)["result"]
        text = "\n".join(block["text"] for block in result["content"])
        assert not result["isError"], text
        return text

    def key(self, chat: Chat) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[chat.tenant]}"} if self.keys else {}

    async def put(self, chat: Chat, name: str, content: bytes) -> None:
        """A file in the chat's home."""
        for start in range(0, len(content), 60_000):
            part = base64.b64encode(content[start : start + 60_000]).decode()
            await self.bash(chat, f"echo {part} | base64 -d >{'>' if start else ''} {name}")

    async def start(self, chat: Chat, port: int = 0, address: str = "127.0.0.1") -> int:
        """Start the program of program.py in the chat's sandbox, and wait until it listens."""
        port = port or free_port()
        await self.put(chat, "program.py", (HERE / "program.py").read_bytes())
        await self._run(chat, f"python3 program.py {port} {address}", port)
        return port

    async def start_sockets(self, chat: Chat) -> int:
        port = free_port()
        await self.put(chat, "sockets.py", (HERE / "socket_program.py").read_bytes())
        await self.put(chat, "ws.zip", _websockets())
        await self._run(chat, f"PYTHONPATH=ws.zip python3 sockets.py {port}", port)
        return port

    async def _run(self, chat: Chat, command: str, port: int) -> None:
        at = f"{{ : </dev/tcp/127.0.0.1/{port} || : </dev/tcp/::1/{port}; }} 2>/dev/null"
        await self.bash(
            chat,
            f"{command} > {port}.log 2>&1 & until {at}; do sleep 0.05; kill -0 $! || {{ cat {port}.log; exit 1; }}; done",
        )

    def client(
        self, chat: Chat | None = None, port: int = 80, *, by: str = "cookie", **headers: str
    ) -> httpx.AsyncClient:
        """A client of one port. `by`: cookie, key, header or nothing."""
        assert chat is not None
        sent = {"Host": self.host(chat, port), **headers}
        if by == "key":
            sent |= self.key(chat)
        elif by == "header":
            sent["X-Cubicle-Key"] = self.token(chat, port)
        elif by == "cookie" and self.keys:
            sent["Cookie"] = f"cubicle-port={self.cookie(chat, port)}" + (
                f"; {headers['Cookie']}" if "Cookie" in headers else ""
            )
        base = f"http://127.0.0.1:{self.port}"
        return httpx.AsyncClient(base_url=base, headers=sent, timeout=60, trust_env=False, verify=False)

    def token(self, chat: Chat, port: int) -> str:
        return self.links.link(chat, port).partition("?cubicle-key=")[2]

    def cookie(self, chat: Chat, port: int, role: str = "VISIT", **options: Any) -> str:
        from cubicle.core.signing import PortGrant, PortRole

        return self.links.token(PortGrant(chat, port, PortRole[role]), options.get("expires"))


def _websockets() -> bytes:
    """The library as a zip of plain Python."""
    content = io.BytesIO()
    root = Path(websockets.__file__).parent
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in root.rglob("*.py"):
            zipped.write(path, f"websockets/{path.relative_to(root)}")
    return content.getvalue()


def links_of(data: Path, keys: dict[str, str], base: str, port: int, domain: str = "") -> PortLinks:
    """The links of a service, made as it makes them."""
    secret = kept_secret(data)
    ring = KeyRing({key: tenant for tenant, key in keys.items()}, pepper=secret)
    return PortLinks(secret, Links(secret, base, ring), port=port, domain=domain)


@asynccontextmanager
async def ground_of(folder: Path, driver: str, **options: str) -> AsyncIterator[Ground]:
    data = folder / "data"
    keys = {} if options.get("KEYS") == "none" else KEYS
    options.pop("KEYS", None)
    chosen = {"DRIVER": driver, "POOL_SIZE": "1", **options}
    after = settings.load(data_dir=data, driver=driver)
    if driver != "memory":
        found = await asyncio.to_thread(some_base, ImageStore(settings.load().image_dir))
        disk = {"SANDBOX_DISK_MB": "300"} if driver == "oci" else {}
        chosen = {"SANDBOX_IMAGE": found.digest, **disk, **chosen}
        after = settings.load(data_dir=data, driver=driver, sandbox_image=chosen["SANDBOX_IMAGE"])
    if keys:
        file = folder / "keys.json"
        file.write_text(json.dumps({key: tenant for tenant, key in keys.items() if tenant != "main"}))
        chosen |= {"MCP_API_KEY": keys["main"], "API_KEYS_FILE": str(file)}
    async with ServiceProcess(data, **chosen).running(after) as service:
        base = options.get("PUBLIC_BASE_URL") or f"http://127.0.0.1:{service.port}"
        domain = options.get("PREVIEW_DOMAIN", "")
        links = await asyncio.to_thread(links_of, data, keys, base, service.port, domain)
        relayed = driver == "docker" or options.get("OCI_RUNTIME") == "runsc"
        yield Ground(service, links, folder, keys, driver, relayed=relayed)


DRIVERS: dict[str, tuple[str, dict[str, str], list[pytest.MarkDecorator]]] = {
    "memory": ("memory", {}, []),
    "oci": ("oci", {}, [pytest.mark.oci]),
    "oci-runsc": ("oci", {"OCI_RUNTIME": "runsc"}, [pytest.mark.oci]),
    "docker-runc": ("docker", {}, [pytest.mark.docker]),
    "docker-runsc": ("docker", {"DOCKER_RUNTIME": "runsc"}, [pytest.mark.docker, pytest.mark.long]),
}


def ground_on(*usual: str) -> Any:
    """The fixture of a file: a service on each driver, of which only these are part of the usual run.

    On gVisor and Docker the bytes go through the guest; else the service dials the port itself. One of either is enough
    for what does not depend on more.
    """
    params = [
        pytest.param((driver, options), id=name, marks=marks if name in usual else [*marks, pytest.mark.long])
        for name, (driver, options, marks) in DRIVERS.items()
    ]

    @pytest.fixture(scope="module", params=params)
    async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
        driver, options = request.param
        if options.get("OCI_RUNTIME") == "runsc" and shutil.which("runsc") is None:
            absent("needs runsc: scripts/packages test")
        if "DOCKER_RUNTIME" in options and options["DOCKER_RUNTIME"] not in await asyncio.to_thread(engine_runtimes):
            absent("needs a Docker engine that has the runtime runsc: scripts/with-dockerd pytest …")
        async with ground_of(tmp_path_factory.mktemp("ports"), driver, **options) as running:
            yield running

    return ground


ground = ground_on(*DRIVERS)


CHAT = Chat("room", "acme")


@pytest.fixture(scope="module")
async def program(ground: Ground) -> int:
    """The port of a program in CHAT's sandbox."""
    return await ground.start(CHAT)


@pytest.fixture(scope="module")
async def sockets(ground: Ground) -> int:
    return await ground.start_sockets(CHAT)


@pytest.fixture(scope="module")
async def own_name(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """A service that knows a name of its own."""
    async with ground_of(
        tmp_path_factory.mktemp("named"), "memory", PUBLIC_BASE_URL="https://tools.example.org", POOL_SIZE="0"
    ) as running:
        yield running
