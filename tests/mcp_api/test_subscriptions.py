"""News of a chat's uploads: to those who listen to this chat, and to nobody else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, ResourcesListChanged, ResourceUpdated

from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.mcp_api import subscriptions
from cubicle.settings import Settings
from tests.support.service import ACCEPT, MODERN, messages, modern_meta, serve

ACKNOWLEDGED, LIST_CHANGED = "notifications/subscriptions/acknowledged", "notifications/resources/list_changed"
ONE, TWO = {"Authorization": "Bearer key-of-one"}, {"Authorization": "Bearer key-of-two"}


class Door:
    """The whole service with two tenants, and how its streams are opened."""

    def __init__(self, url: str, client: httpx.AsyncClient, app: Any) -> None:
        self.url = url
        self.client = client
        self.app = app

    @asynccontextmanager
    async def stream(
        self, chat: str, key: dict[str, str] = ONE, **wanted: Any
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The messages of one stream; leaving the block hangs up."""
        headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat, **key}
        headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
        params = {"notifications": wanted, "_meta": modern_meta()}
        body = {"jsonrpc": "2.0", "id": "my-listen", "method": "subscriptions/listen", "params": params}
        async with self.client.stream("POST", "/mcp", content=json.dumps(body), headers=headers) as response:

            async def read() -> AsyncIterator[dict[str, Any]]:
                if response.headers["content-type"] == "application/json":
                    await response.aread()
                    yield response.json()
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line[6:])

            yield read()

    async def upload(self, chat: str, name: str, key: dict[str, str] = ONE) -> None:
        answer = await self.client.post(f"/api/uploads/{chat}/{name}", content=b"x", headers=key)
        assert answer.status_code == 201

    async def ask(self, method: str, params: dict[str, Any], **headers: str) -> dict[str, Any]:
        sent = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": "flags", **ONE, **headers}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return messages(await self.client.post("/mcp", content=json.dumps(body), headers=sent))[-1]


@pytest.fixture(scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    folder: Path = tmp_path_factory.mktemp("listening")
    (folder / "keys").write_text('{"key-of-one": "one", "key-of-two": "two"}')
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None, driver="memory", data_dir=folder, pool_size=0, api_keys_file=folder / "keys"
    )
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Door(url, client, app)
    driver = make_driver(settings)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)
    await driver.close()


async def soon(messages: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await asyncio.wait_for(anext(messages), 60)


async def silent(messages: AsyncIterator[dict[str, Any]]) -> bool:
    try:
        await asyncio.wait_for(anext(messages), 0.3)
    except TimeoutError:
        return True
    return False


async def test_an_upload_a_replacement_and_a_deletion_are_told(door: Door) -> None:
    async with door.stream("news", resourcesListChanged=True, toolsListChanged=True) as heard:
        first = await soon(heard)
        assert first["method"] == ACKNOWLEDGED
        assert first["params"]["notifications"] == {"resourcesListChanged": True}
        for _ in ("new", "replaced"):
            await door.upload("news", "a.txt")
            told = await soon(heard)
            assert told["method"] == LIST_CHANGED
            assert told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "my-listen"
        assert (await door.client.delete("/api/uploads/news/a.txt", headers=ONE)).status_code == 204
        assert (await soon(heard))["method"] == LIST_CHANGED
        assert (await door.client.delete("/api/uploads/news/a.txt", headers=ONE)).status_code == 404
        assert await silent(heard)


async def test_nobody_hears_of_another_chat_or_of_another_tenant(door: Door) -> None:
    foreign = ["file://uploads/mine/a.txt"]
    async with (
        door.stream("mine", resourcesListChanged=True) as mine,
        door.stream("other", resourcesListChanged=True, resourceSubscriptions=foreign) as other,
        door.stream("mine", TWO, resourcesListChanged=True, resourceSubscriptions=foreign) as namesake,
    ):
        for heard in (mine, other, namesake):
            assert (await soon(heard))["method"] == ACKNOWLEDGED
        await door.upload("mine", "a.txt")
        assert (await soon(mine))["method"] == LIST_CHANGED
        assert await silent(other)
        assert await silent(namesake)


async def test_what_was_not_asked_for_is_not_told(door: Door) -> None:
    uris = ["file://uploads/some/b%2etxt", "file://uploads/foreign/b.txt", "file:///etc/passwd"]
    async with door.stream("some", resourceSubscriptions=uris) as heard:
        assert (await soon(heard))["params"]["notifications"] == {"resourceSubscriptions": uris[:1]}
        await door.upload("some", "a.txt")
        await door.upload("some", "b.txt")
        told = await soon(heard)
        assert (told["method"], told["params"]["uri"]) == ("notifications/resources/updated", uris[0])
        assert await silent(heard)


async def test_the_python_sdk_listens(door: Door) -> None:
    async with httpx2.AsyncClient(headers={"X-Chat-Id": "sdk", **ONE}, timeout=60, trust_env=False) as http:
        async with Client(streamable_http_client(f"{door.url}/mcp", http_client=http), mode="auto") as client:
            uri = "file://uploads/sdk/a.txt"
            async with client.listen(resources_list_changed=True, resource_subscriptions=[uri]) as news:
                await door.upload("sdk", "a.txt")
                told = {await asyncio.wait_for(anext(news), 60) for _ in range(2)}
                assert told == {ResourcesListChanged(), ResourceUpdated(uri)}
            assert [str(r.uri) for r in (await client.list_resources()).resources] == [uri]
        async with Client(streamable_http_client(f"{door.url}/mcp", http_client=http), mode="legacy") as client:
            with pytest.raises(ListenNotSupportedError):
                async with client.listen(resources_list_changed=True):
                    pass


async def test_each_era_says_what_it_can_tell(door: Door) -> None:
    modern = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "server/discover"}
    found = (await door.ask("server/discover", {"_meta": modern_meta()}, **modern))["result"]["capabilities"]
    assert found["resources"] == {"subscribe": True, "listChanged": True}
    assert not found["tools"].get("listChanged")
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    found = (await door.ask("initialize", hello))["result"]["capabilities"]
    assert not found["resources"].get("listChanged")
    assert not found["resources"].get("subscribe")
    assert not found["tools"].get("listChanged")
    refused = await door.ask("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
    assert refused["error"]["code"] == -32601


async def test_streams_are_counted_and_one_that_was_left_is_free_again(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_STREAMS_OF_A_CHAT", 1)
    async with door.stream("full", resourcesListChanged=True) as first:
        await soon(first)
        async with door.stream("full", resourcesListChanged=True) as second:
            assert "Too many" in (await soon(second))["error"]["message"]
        async with door.stream("free", resourcesListChanged=True) as elsewhere:
            assert (await soon(elsewhere))["method"] == ACKNOWLEDGED
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        async with door.stream("full", resourcesListChanged=True) as again:
            if "error" not in await soon(again):
                return
    pytest.fail("a stream that was left still counts")


async def test_too_many_resources_at_once_are_refused(door: Door) -> None:
    many = [f"file://uploads/many/{n}" for n in range(subscriptions.MAX_URIS + 1)]
    async with door.stream("many", resourceSubscriptions=many) as heard:
        assert (await soon(heard))["error"]["code"] == -32602


async def test_the_end_of_the_service_ends_the_streams(door: Door) -> None:
    async with door.stream("ending", resourcesListChanged=True) as heard:
        await soon(heard)
        door.app.state.end_streams()
        assert "result" in await soon(heard)
        with pytest.raises(StopAsyncIteration):
            await soon(heard)


async def test_one_tenant_cannot_take_all_streams(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_STREAMS_OF_A_TENANT", 1)
    async with AsyncExitStack() as held, asyncio.timeout(100):

        async def taken(chat: str, key: dict[str, str]) -> None:
            """Streams of the tests before may take a while to be let go of."""
            while True:
                stream = door.stream(chat, key, resourcesListChanged=True)
                if "error" not in await soon(await stream.__aenter__()):
                    held.push_async_exit(stream)
                    return
                await stream.__aexit__(None, None, None)

        await taken("share", ONE)
        async with door.stream("another", resourcesListChanged=True) as refused:
            assert "Too many" in (await soon(refused))["error"]["message"]
        await taken("share", TWO)
