"""What the service keeps in memory for a chat ends with the chat."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from cubicle import settings
from cubicle.app import running
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_driver
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve

IDS = [f"passing-{number}" for number in range(6)]
MORE = [f"passing-{number}" for number in range(6, 30)]
WARM_UP = 10
BOUND = 120
"""Blocks of Python's allocator for a chat: one that stays behind takes 450. The first ones fill caches: 60 each."""


async def use(client: httpx.AsyncClient, chat: str) -> None:
    """A tool call, an upload, its checksum, the prompt and the operator's look."""
    call = {"name": "bash_tool", "arguments": {"command": "echo here", "description": "test"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat}
    assert "here" in (await client.post("/mcp", content=json.dumps(body), headers=headers)).text
    assert (await client.put(f"/api/uploads/{chat}/note.txt", content=b"note")).status_code == 201
    for path in (f"/api/uploads/{chat}", f"/system-prompt?chat_id={chat}", "/api/sandboxes"):
        assert (await client.get(path)).status_code == 200, path


def kept_for(ids: list[str]) -> list[object]:
    """Everything that still has to do with one of these chats."""
    gc.collect()
    digests = {Chat(id).digest for id in ids}
    found = gc.get_objects()
    chats: list[object] = [o for o in found if type(o) is Chat and o.id in ids]
    return chats + [type(o) for o in found if isinstance(o, dict) and any(digest in o for digest in digests)]


@asynccontextmanager
async def client_of_a_service(data_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    chosen = settings.load(driver="memory", data_dir=data_dir, pool_size=0)
    try:
        async with (
            running(chosen) as app,
            serve(app) as url,
            httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
        ):
            yield client
    finally:
        await empty(make_driver(chosen))


async def remove(client: httpx.AsyncClient, chat: str) -> None:
    assert (await client.delete(f"/api/sandboxes/{chat}")).status_code == 204


@pytest.mark.timeout(200)
async def test_nothing_is_kept_for_a_removed_chat(tmp_path: Path) -> None:
    async with client_of_a_service(tmp_path / "data") as client:
        for chat in IDS:
            await use(client, chat)
        assert kept_for(IDS)
        for chat in IDS:
            await remove(client, chat)
        async with asyncio.timeout(30):  # tasks that attended the sandboxes end in their own time
            while left := kept_for(IDS):
                await asyncio.sleep(0.1)
        assert left == []
        before = 0
        for number, chat in enumerate(MORE):
            await use(client, chat)
            await remove(client, chat)
            if number == WARM_UP:
                before = await settled_blocks()
        grown = (await settled_blocks() - before) / (len(MORE) - WARM_UP)
        assert grown < BOUND, f"{grown:.0f} blocks a chat"


async def settled_blocks() -> int:
    """What Python's allocator has given out, when nothing ends any more."""
    blocks: list[int] = []
    async with asyncio.timeout(30):
        while len(blocks) < 3 or min(blocks[-3:-1]) > blocks[-1] + 20:
            await asyncio.sleep(0.2)
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    return min(blocks)
