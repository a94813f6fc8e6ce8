"""What the service keeps in memory for a chat ends with the chat."""

from __future__ import annotations

import asyncio
import gc
import json
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


@pytest.mark.timeout(200)
async def test_nothing_is_kept_for_a_removed_chat(tmp_path: Path) -> None:
    chosen = settings.load(driver="memory", data_dir=tmp_path / "data", pool_size=0)
    try:
        async with (
            running(chosen) as app,
            serve(app) as url,
            httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
        ):
            for chat in IDS:
                await use(client, chat)
            assert kept_for(IDS)
            for chat in IDS:
                assert (await client.delete(f"/api/sandboxes/{chat}")).status_code == 204
            async with asyncio.timeout(30):  # tasks that attended the sandboxes end in their own time
                while left := kept_for(IDS):
                    await asyncio.sleep(0.1)
            assert left == []
    finally:
        await empty(make_driver(chosen))
