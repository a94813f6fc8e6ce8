"""Official clients, unchanged, whose connection is cut in the middle of a command: they get the whole answer."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.clients.conftest import Node
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.service import Service

PARTS = 4


STEPS = "".join(f"echo part {n}; touch at-{n}; until [ -e go-{n} ]; do sleep 0.02; done; " for n in range(PARTS))
COMMAND = f"echo run >> runs; {STEPS}echo end"
"""Appends one line to a file each time it is run, and goes on part by part when it is told to."""
WHOLE = "".join(f"part {n}\n" for n in range(PARTS)) + "end\n"


async def cut_at_every_part(proxy: CuttingProxy, service: Service, chat: str) -> None:
    """Cut the connection in each part of the command, then let it go on: what it prints next is sent to nobody."""
    for n in range(PARTS):
        await service.bash(f"until [ -e at-{n} ]; do sleep 0.02; done", chat=chat)
        await asyncio.sleep(0.3)  # the client has had the part, mostly
        proxy.cut()
        await service.bash(f"touch go-{n}", chat=chat)


@pytest.mark.real
async def test_the_python_sdk_survives_cuts(service: Service) -> None:
    seen: list[str | None] = []

    async def progress(_progress: float, _total: float | None, message: str | None) -> None:
        seen.append(message)

    async with (
        cutting_proxy(service.url) as proxy,
        httpx2.AsyncClient(headers={"X-Chat-Id": "resume-python"}, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(f"{proxy.url}/mcp", http_client=http), mode="legacy") as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(cut_at_every_part(proxy, service, "resume-python"))
        arguments = {"command": COMMAND, "description": "test"}
        result = await client.call_tool("bash_tool", arguments, progress_callback=progress)  # type: ignore[arg-type]
        assert result.content[0].text == WHOLE  # type: ignore[union-attr]
        assert proxy.cuts == PARTS
    assert "".join(message or "" for message in seen) == WHOLE
    assert await service.bash("cat runs", chat="resume-python") == "run\n"


@pytest.mark.real
async def test_the_typescript_sdk_survives_cuts(service: Service, node: Node) -> None:
    async with cutting_proxy(service.url) as proxy, asyncio.TaskGroup() as group:
        group.create_task(cut_at_every_part(proxy, service, "resume-ts"))
        url = f"{proxy.url}/mcp"
        code, output = await node("resuming.mjs", URL=url, CHAT="resume-ts", COMMAND=COMMAND, limit=100)
        assert proxy.cuts == PARTS
    assert code == 0, output
    seen = json.loads(output.strip().splitlines()[-1])
    assert seen["answer"]["content"] == [{"type": "text", "text": WHOLE}], seen
    assert "".join(seen["progress"]) == WHOLE
    assert await service.bash("cat runs", chat="resume-ts") == "run\n"
