"""A coding agent that works while the service is killed: its call is answered, it ran once, and the journal has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle import settings
from cubicle.core.chat import Chat
from cubicle.images.store import ImageStore
from cubicle.journal import reading
from cubicle.journal.format import Entry
from tests.drivers.makers import some_base
from tests.support.process import ACCEPT, ServiceProcess

CHAT = "agents"
SESSION = "0b64ed5e-7b1c-4f0e-9d0a-3f3f3f3f3f3f"
HOSTILE = "\x1b]0;owned\x07<script>alert(1)</script>"
_EVENTS = [
    {"type": "system", "subtype": "init", "session_id": SESSION},
    {"type": "assistant", "message": {"content": [{"type": "text", "text": f"I begin. {HOSTILE}"}]}},
]
_RESULT = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 1, "result": "All is done."}
# It speaks as Claude Code does, and works until it is let go.
AGENT = f"""#!/bin/bash
prompt=$(cat)
echo "$prompt" >> ~/runs
cat <<'EVENTS'
{chr(10).join(map(json.dumps, _EVENTS))}
EVENTS
until [ -e ~/go ]; do sleep 0.2; done
echo '{json.dumps(_RESULT)}'
"""
DRIVERS = [
    pytest.param("memory", id="memory"),
    pytest.param("oci", id="oci", marks=[pytest.mark.oci, pytest.mark.real, pytest.mark.long]),
    pytest.param("docker", id="docker", marks=[pytest.mark.docker, pytest.mark.real]),
]


@pytest.fixture(params=DRIVERS)
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    options = {"DRIVER": request.param, "POOL_SIZE": "0", "RESUME_SECONDS": "40", "ANTHROPIC_API_KEY": "key"}
    options["SUB_AGENT_CLI"] = "/home/assistant/claude"
    given: dict[str, Any] = {"data_dir": tmp_path / "data", "driver": request.param}
    if request.param != "memory":
        store = ImageStore(settings.load().image_dir)
        base = await asyncio.to_thread(some_base, store)
        given["sandbox_image"] = options["SANDBOX_IMAGE"] = base.digest
    async with ServiceProcess(tmp_path / "data", **options).running(settings.load(**given)) as service:
        failed, _ = await service.bash(CHAT, f"cat > ~/claude <<'AGENT'\n{AGENT}AGENT\nchmod +x ~/claude")
        assert not failed
        yield service


def entries(tmp_path: Path) -> list[Entry]:
    return reading.read_entries(tmp_path / "data" / "journal" / Chat(CHAT).digest, 0, 10_000)


async def ask(service: ServiceProcess, key: str, prompt: str) -> dict[str, Any]:
    params = {"name": "sub_agent", "arguments": {"prompt": prompt, "model": None}}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": CHAT, "Idempotency-Key": key}
    response = await service.client.post("/mcp", content=json.dumps(body), headers=headers)
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    result: dict[str, Any] = json.loads(lines[-1] if lines else response.text)["result"]
    return result


async def until(service: ServiceProcess, command: str) -> None:
    async with asyncio.timeout(90):
        while (await service.bash(CHAT, command))[0]:
            await asyncio.sleep(0.05)


async def cut(asked: asyncio.Task[dict[str, Any]]) -> None:
    with pytest.raises(httpx.TransportError):
        await asked


async def test_an_agent_that_works_while_the_service_is_killed_runs_once_and_is_answered(
    service: ServiceProcess, tmp_path: Path
) -> None:
    for kill in range(3):  # at any time of it
        asked = asyncio.create_task(ask(service, "one", "Work."))
        if kill:
            await asyncio.sleep(0.1 * kill)
        else:
            await until(service, "grep -qx Work. ~/runs")
        service.kill()
        await cut(asked)
        await service.start()
    asked = asyncio.create_task(ask(service, "one", "Work."))
    await service.bash(CHAT, "touch ~/go")
    result = await asked
    assert not result["isError"], result
    assert result["content"][0]["text"].startswith("All is done.")
    assert (await service.bash(CHAT, "cat ~/runs"))[1] == "Work.\n"
    service.kill()
    await service.start()
    assert await ask(service, "one", "Work.") == result
    assert (await service.bash(CHAT, "cat ~/runs; pgrep -fc [h]ome/assistant/claude >&2 || true"))[1] == "Work.\n0\n"


@pytest.mark.parametrize("service", ["memory"], indirect=True)
async def test_an_agent_that_ended_while_there_was_no_service_is_answered(
    service: ServiceProcess, tmp_path: Path
) -> None:
    asked = asyncio.create_task(ask(service, "one", "Work."))
    await until(service, "grep -qx Work. ~/runs")
    service.kill()
    await cut(asked)
    [home] = await asyncio.to_thread(lambda: list((tmp_path / "data" / "memory").glob("*/home")))
    await asyncio.to_thread((home / "go").touch)
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(lambda: list(home.glob(".cache/cubicle/agents/*/exit"))):
            await asyncio.sleep(0.02)
    await service.start()
    result = await ask(service, "one", "Work.")
    assert result["content"][0]["text"].startswith("All is done."), result
    assert (await service.bash(CHAT, "cat ~/runs"))[1] == "Work.\n"


async def test_the_journal_has_the_run_and_its_events(service: ServiceProcess, tmp_path: Path) -> None:
    await service.bash(CHAT, "touch ~/go")
    await ask(service, "one", "Work.")
    runs = [entry.fields for entry in await asyncio.to_thread(entries, tmp_path) if entry.kind == "agent"]
    assert {fields["run"] for fields in runs} == {runs[0]["run"]}
    assert str(runs[0]["run"]).startswith("agent-")
    assert [fields["event"] for fields in (runs[0], runs[-1])] == ["started", "ended"]
    texts = [fields["text"] for fields in runs[1:-1]]
    assert {fields["event"] for fields in runs[1:-1]} == {"event"}
    assert f"[agent session {SESSION}]\n" in texts
    assert any("I begin." in str(text) for text in texts)
