"""A chat that was removed for good: nothing of it is left in DATA_DIR."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cubicle import record, removal
from cubicle.core.chat import Chat
from cubicle.settings import Settings
from tests.cli.test_running import said
from tests.support.process import ServiceProcess

pytestmark = pytest.mark.real
CHAT = Chat("very-private-chat")
SECRET = "xyzzy-what-was-said"
ADDRESS = "somebody-private@example.org"
KEY = "the-key-of-the-service"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    settings = Settings(_env_file=None, driver="memory", data_dir=tmp_path / "data")  # type: ignore[call-arg]
    variables = {"DRIVER": "memory", "POOL_SIZE": "0", "MCP_API_KEY": KEY, "PREVIEW_PUBLIC": "*", "TRASH_DAYS": "0"}
    made = ServiceProcess(tmp_path / "data", CONTAINER_MAX_AGE_HOURS="0.001", TENANT_MAX_CALLS="100", **variables)
    made.client.headers["Authorization"] = f"Bearer {KEY}"
    async with made.running(settings):
        yield made


async def fill(service: ServiceProcess) -> None:
    """Everything that is kept of a chat: by its use where that can be had here, by its record where it cannot."""
    service.client.headers["X-User-Email"] = ADDRESS
    assert (await service.bash(CHAT.id, f"echo {SECRET} | tee ~/file"))[1] == f"{SECRET}\n"
    assert (await service.client.put(f"/api/uploads/{CHAT.id}/{SECRET}.txt", content=SECRET.encode())).is_success
    data = service._data
    code, text = await asyncio.to_thread(said, data.parent, "links", "add", CHAT.id, "--label", SECRET, MCP_API_KEY=KEY)
    assert code == 0, text
    shared = await service.client.post(f"/api/chats/{CHAT.id}/ports/8000/share", json={})
    assert shared.is_success, shared.text
    budget = {"dollars": 1.0, "requests": 1, "tokens": 1}
    for folder in (
        removal.budgets_folder(data),
        removal.agent_runs_folder(data),
        removal.egress_folder(data) / "allowances",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(record.write, folder / CHAT.digest, budget)
    await service.bash("another", f"echo other > ~/file; echo {CHAT.digest[:8]}")


def traces(data: Path, *needles: str) -> Iterator[str]:
    """Where in a folder one of these texts is, in a name or in a content."""
    for folder, folders, files in os.walk(data):
        for name in (*folders, *files):
            path = Path(folder) / name
            if any(needle in name for needle in needles):
                yield f"the name {path.relative_to(data)}"
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                yield from (f"{needle} in {path.relative_to(data)}" for needle in needles if needle.encode() in content)


def left(service: ServiceProcess) -> list[str]:
    return list(traces(service._data, CHAT.id, SECRET))


async def until_nothing_is_left(service: ServiceProcess) -> None:
    async with asyncio.timeout(30):
        while left(service):
            await asyncio.sleep(0.2)


async def test_the_service_removes_it_all(service: ServiceProcess) -> None:
    await fill(service)
    assert any("journal" in trace for trace in left(service))
    assert (await service.client.delete(f"/api/sandboxes/{CHAT.id}")).status_code == 204
    await until_nothing_is_left(service)
    assert [
        trace for trace in traces(service._data, CHAT.digest) if "links" not in trace and "clock" not in trace
    ] == []
    service.stop()
    assert left(service) == []
    assert [trace for trace in traces(service._data, CHAT.digest) if "links" not in trace] == []


@pytest.mark.parametrize("beside", [True, False])
async def test_the_command_line_removes_it_all(service: ServiceProcess, beside: bool) -> None:
    await fill(service)
    if not beside:
        service.stop()
    code, text = await asyncio.to_thread(said, service._data.parent, "rm", "--now", CHAT.id)
    assert code == 0, text
    await until_nothing_is_left(service)
    if beside:
        async with asyncio.timeout(60):
            while any("links" not in trace and "clock" not in trace for trace in traces(service._data, CHAT.digest)):
                await asyncio.sleep(0.2)  # the service has not heard of it yet
        service.stop()
    assert left(service) == []
    found = [trace for trace in traces(service._data, CHAT.digest) if "links" not in trace]
    assert [trace for trace in found if beside or "clock" not in trace] == []
    await service.start()
    assert (await service.bash("another", "cat ~/file"))[1] == "other\n"
    assert (await service.bash(CHAT.id, "ls -A ~"))[1].find(SECRET) < 0
