"""Two tenants at full load on one service, with chats of the same ids: nothing of one reaches the other.

Each has a mark of its own in its commands, files, names, labels and e-mails. Every byte that one receives, every line
of the log, every file of the service and every label of the metrics is searched for the other's. CUBICLE_LONG=1 goes on
for 60 seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle.core.api_keys import ApiKey, KeyFile
from cubicle.settings import Settings
from tests.support.process import ServiceProcess
from tests.support.service import ACCEPT, MODERN, messages, modern_meta

SECONDS = 60.0 if os.environ.get("CUBICLE_LONG") else 5.0
ROOMS = ("room", "den")
MARKS = {"zebraco": "mark-of-zebraco", "otterco": "mark-of-otterco"}
_KEEP = 64


@dataclass
class Tenant:
    """One of the two: what it does, and what it got."""

    name: str
    client: httpx.AsyncClient
    got: Counter[str] = field(default_factory=Counter)
    """Answers and events, by what was asked."""

    @property
    def mark(self) -> str:
        return MARKS[self.name]

    @property
    def foreign(self) -> tuple[str, ...]:
        return tuple(text for name, mark in MARKS.items() if name != self.name for text in (mark, f"{name}-key", name))

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.name}-key", "X-User-Email": f"{self.mark}@example.com"}

    def check(self, what: str, said: str) -> str:
        for text in self.foreign:
            place = said.find(text)
            assert place < 0, f"{self.name} got {text!r} by {what}: …{said[max(0, place - 200) : place + 200]}"
        self.got[what] += 1
        return said

    async def mcp(self, room: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": self.got.total(), "method": method, "params": params}
        headers = {**self.headers, "Accept": ACCEPT, "X-Chat-Id": room}
        answer = await self.client.post("/mcp", json=body, headers=headers)
        self.check(f"{method} {params.get('name', '')}".strip(), answer.text)
        return messages(answer)[-1]

    async def tool(self, room: str, name: str, **arguments: Any) -> str:
        called = {"name": name, "arguments": {**arguments, "description": self.mark}}
        result = (await self.mcp(room, "tools/call", called))["result"]
        assert not result["isError"], result
        return str(result["content"][0]["text"])

    async def commands(self, room: str) -> None:
        number = self.got.total()
        said = await self.tool(room, "bash_tool", command=f"echo {self.mark}-{number} >> notes; cat notes | tail -n 3")
        assert f"{self.mark}-{number}" in said

    async def files(self, room: str) -> None:
        path = f"/mnt/user-data/outputs/{self.mark}.txt"
        await self.tool(room, "create_file", path=path, content=f"{self.mark} one\n" * 20)
        assert self.mark in await self.tool(room, "view", path=path)

    async def uploads(self, room: str) -> None:
        name = f"{self.mark}-{self.got.total() % 10}.txt"
        content = f"{self.mark}\n" * 500
        sent = await self.client.post(f"/api/uploads/{room}/{name}", content=content.encode(), headers=self.headers)
        self.check("upload", sent.text)
        assert self.check("list of uploads", await self.get(f"/api/uploads/{room}"))
        assert self.check("download", await self.get(f"/files/{room}/uploads/{name}")) == content
        await self.mcp(room, "resources/list", {})

    async def looks(self, room: str) -> None:
        for path in (
            "/api/sandboxes", f"/files/{room}/outputs/", f"/api/links/{room}", f"/api/chats/{room}/ports", "/mcp-info",
            f"/api/chats/{room}/replay", f"/terminal/{room}/processes", f"/preview/{room}/", "/admin",
        ):  # fmt: skip
            self.check(path, await self.get(path))
        self.check("prompt", await self.get(f"/system-prompt?chat_id={room}"))
        made = await self.client.post(f"/api/links/{room}?label={self.mark}", headers=self.headers)
        self.check("link", made.text)
        if made.status_code == 201:
            key = made.json()["url"].partition("?key=")[2]
            by_link = await self.client.get(f"/files/{room}/outputs/?key={key}")
            self.check("by link", by_link.text)
            await self.client.delete(f"/api/links/{room}/{made.json()['id']}", headers=self.headers)
        assert (await self.client.get("/metrics", headers=self.headers)).status_code == 401

    async def get(self, path: str) -> str:
        return (await self.client.get(path, headers=self.headers)).text

    @asynccontextmanager
    async def _stream(self, room: str) -> AsyncIterator[httpx.Response]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen"}
        params = {"_meta": modern_meta(), "notifications": {"resourcesListChanged": True}}
        headers = {**self.headers, "Accept": ACCEPT, "X-Chat-Id": room, "MCP-Protocol-Version": MODERN}
        headers["Mcp-Method"] = "subscriptions/listen"
        async with self.client.stream("POST", "/mcp", json={**body, "params": params}, headers=headers) as answer:
            yield answer

    async def follow(self, room: str, what: str) -> None:
        """Events, until it is cancelled."""
        path = {"activity": f"/api/chats/{room}/events", "ports": f"/api/chats/{room}/ports/events"}.get(what)
        opened = self.client.stream("GET", path, headers=self.headers) if path else self._stream(room)
        async with opened as answer:
            assert answer.status_code == 200
            rest = ""
            async for text in answer.aiter_text():
                rest = self.check(f"events of {what}", rest[-_KEEP:] + text)


@asynccontextmanager
async def service_of(folder: Path) -> AsyncIterator[ServiceProcess]:
    (folder / "data").mkdir()
    file = KeyFile.empty()
    for name in MARKS:
        file = file.with_key(f"{name}-key", ApiKey(f"{name}1", name))
    (folder / "keys.json").write_text(file.text())
    settings = {"DRIVER": "memory", "POOL_SIZE": "0", "MCP_API_KEY": "operator-key", "METRICS_TENANTS": "true"}
    service = ServiceProcess(folder / "data", **settings, API_KEYS_FILE=str(folder / "keys.json"), SHED_MEMORY_MB="0")
    async with service.running(Settings(_env_file=None, driver="memory", data_dir=folder / "data")):  # type: ignore[call-arg]
        yield service


async def _again(work: Callable[[str], Awaitable[None]], room: str, ends: float) -> None:
    while asyncio.get_running_loop().time() < ends:
        await work(room)


async def load(tenants: list[Tenant], seconds: float) -> None:
    """Everything at once, of both."""
    for tenant in tenants:
        for room in ROOMS:
            await tenant.commands(room)
    ends = asyncio.get_running_loop().time() + seconds
    followers = [
        asyncio.create_task(tenant.follow(room, what))
        for tenant in tenants
        for room in ROOMS
        for what in ("activity", "ports", "uploads")
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for tenant in tenants:
                for room in ROOMS:
                    for work in (tenant.commands, tenant.files, tenant.uploads, tenant.looks):
                        group.create_task(_again(work, room, ends))
        assert not [task for task in followers if task.done()]
    finally:
        for task in followers:
            task.cancel()
        ended = await asyncio.gather(*followers, return_exceptions=True)
    assert not [error for error in ended if isinstance(error, AssertionError)]


def lines_of(log: str) -> dict[str, int]:
    """Checks the lines of the log; how many each tenant has."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        tenant = json.loads(line).get("tenant")
        named = [name for name, mark in MARKS.items() if mark in line]
        assert named in ([], [tenant]), line
        assert not any(f"{name}-key" in line for name in MARKS), line
        found[str(tenant)] += 1
    return found


def audited_in(content: str) -> set[str]:
    """Checks the audit log, which is one for all tenants and read by the operator: each record names its own tenant
    only, and of what was done nothing but who did it; whom they name."""
    found = set()
    for line in content.splitlines():
        fields = json.loads(line)["fields"]
        named = [name for name in MARKS if name in json.dumps(fields)]
        assert named in ([], [fields.get("tenant")]), line
        assert "mark-of-" not in json.dumps({**fields, "user": ""}), line
        assert not any(f"{name}-key" in line for name in MARKS), line
        found.update(name for name in named if MARKS[name] in line)
    return found


def files_of(folder: Path) -> Counter[str]:
    """Checks the files: none holds both marks, nor does what one sandbox holds; how many hold each."""
    found: Counter[str] = Counter()
    owners: dict[Path, set[str]] = {}
    for path in (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        content = path.name.encode() + b"\n" + path.read_bytes()
        named = {name for name, mark in MARKS.items() if mark.encode() in content}
        parts = path.relative_to(folder).parts
        if parts[0] == "audit" and path.suffix == ".jsonl":
            found.update(audited_in(path.read_text()))
            continue
        assert len(named) < 2, path
        found.update(named)
        if parts[0] == "memory":
            owners.setdefault(Path(*parts[:2]), set()).update(named)
    assert all(len(named) == 1 for named in owners.values()), owners
    assert len(owners) == len(MARKS) * len(ROOMS)
    return found


@pytest.mark.timeout(600)
async def test_nothing_of_one_tenant_reaches_another(tmp_path: Path) -> None:
    limits = httpx.Limits(max_connections=200)
    async with service_of(tmp_path) as service:
        url = str(service.client.base_url)
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False, limits=limits) as client:
            tenants = [Tenant(name, client) for name in MARKS]
            await load(tenants, SECONDS)
        shown = (await service.client.get("/metrics", headers={"Authorization": "Bearer operator-key"})).text
        service.stop()
        log = service.log()
        files = await asyncio.to_thread(files_of, tmp_path / "data")
    for tenant in tenants:
        print(f"{tenant.name}: {dict(tenant.got)}")
        for what in ("activity", "ports", "uploads"):
            assert tenant.got[f"events of {what}"], what
    lines = lines_of(log)
    for name, mark in MARKS.items():
        assert lines[name] > 10
        assert files[name] > 5
        assert f'tenant="{name}"' in shown
        assert mark not in shown
