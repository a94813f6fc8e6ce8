"""MCP Apps: clients that show cards get them; all others get what they always got."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cubicle.mcp_api.ui_cards import EXTENSION, MEDIA_TYPE, declares
from tests.http_api.pages.visitor import KEY, House, house
from tests.support.service import MODERN, messages, modern_meta

ACCEPT = {"Accept": "application/json, text/event-stream"}
UI = {"extensions": {EXTENSION: {"mimeTypes": [MEDIA_TYPE]}}}
INITIALIZE = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "test", "version": "1"}}
BASH = {"name": "bash_tool", "arguments": {"command": "echo hello", "description": "Say hello"}}


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with house(tmp_path_factory.mktemp("cards"), key=KEY, public_base_url="https://box.example/p") as running:
        yield running


class Client:
    """A client of the handshake era."""

    def __init__(self, served: House, chat: str, session: str = "") -> None:
        self._served = served
        self._headers = {**ACCEPT, "X-Chat-Id": chat} | ({"Mcp-Session-Id": session} if session else {})

    async def raw(self, method: str, params: dict[str, Any]) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self._served.client.post("/mcp", json=body, headers=self._headers)

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = messages(await self.raw(method, params or {}))[-1]
        return answer


async def client(served: House, capabilities: dict[str, Any], chat: str = "c") -> tuple[Client, dict[str, Any]]:
    first = await Client(served, chat).raw("initialize", {**INITIALIZE, "capabilities": capabilities})
    return Client(served, chat, first.headers["mcp-session-id"]), messages(first)[-1]["result"]


@pytest.mark.parametrize(
    "said",
    [None, 7, {}, {EXTENSION: None}, {EXTENSION: []}, {EXTENSION: {"mimeTypes": ["text/plain"]}}, {"other": {}}],
)
def test_who_does_not_say_that_it_shows_cards_shows_none(said: object) -> None:
    assert not declares(said)
    assert declares({EXTENSION: {}})
    assert declares(UI["extensions"])


async def test_a_client_without_cards_gets_what_it_always_got(served: House) -> None:
    plain, result = await client(served, {})
    assert EXTENSION not in result["capabilities"].get("extensions", {})
    tools = (await plain.ask("tools/list"))["result"]["tools"]
    assert all("_meta" not in tool for tool in tools)
    called = (await plain.ask("tools/call", BASH))["result"]
    assert "_meta" not in called
    assert (await plain.ask("resources/list"))["result"]["resources"] == []


async def test_a_client_with_cards_gets_the_same_text_and_their_addresses(served: House) -> None:
    plain, _ = await client(served, {})
    shows, result = await client(served, UI)
    assert EXTENSION in result["capabilities"]["extensions"]
    tools = {tool["name"]: tool for tool in (await shows.ask("tools/list"))["result"]["tools"]}
    assert tools["bash_tool"]["_meta"]["ui"]["resourceUri"] == "ui://cubicle/computer"
    assert tools["view"]["_meta"]["ui"]["resourceUri"] == "ui://cubicle/file"
    without = (await plain.ask("tools/list"))["result"]["tools"]
    assert [{k: v for k, v in tool.items() if k != "_meta"} for tool in tools.values()] == without
    called, same = (await shows.ask("tools/call", BASH))["result"], (await plain.ask("tools/call", BASH))["result"]
    assert called["content"] == same["content"]
    assert called["_meta"] == {"cubicle/chat": "c"}
    listed = (await shows.ask("resources/list"))["result"]["resources"]
    assert {one["uri"] for one in listed} == {
        f"ui://cubicle/{view}" for view in ("computer", "browser", "terminal", "file", "port")
    }


async def test_the_newer_era_says_it_with_each_request(served: House) -> None:
    async def ask(method: str, capabilities: dict[str, Any], **params: Any) -> dict[str, Any]:
        meta = modern_meta() | {"io.modelcontextprotocol/clientCapabilities": capabilities}
        headers = {**ACCEPT, "X-Chat-Id": "c", "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if "uri" in params or "name" in params:
            headers["Mcp-Name"] = str(params.get("uri") or params.get("name"))
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        result: dict[str, Any] = messages(await served.client.post("/mcp", json=body, headers=headers))[-1]["result"]
        return result

    assert EXTENSION in (await ask("server/discover", UI))["capabilities"]["extensions"]
    assert EXTENSION not in (await ask("server/discover", {}))["capabilities"].get("extensions", {})
    assert all("_meta" in tool for tool in (await ask("tools/list", UI))["tools"])
    assert all("_meta" not in tool for tool in (await ask("tools/list", {}))["tools"])
    called = await ask("tools/call", UI, **BASH)
    assert called["_meta"]["cubicle/chat"] == "c"
    state = await ask("resources/read", UI, uri="cubicle://card/c")
    assert (state["cacheScope"], state["ttlMs"]) == ("private", 0)


async def test_the_page_of_a_card_holds_no_key_and_frames_the_service_alone(served: House) -> None:
    shows, _ = await client(served, UI)
    pages = set()
    for view in ("computer", "browser", "terminal", "file", "port"):
        (page,) = (await shows.ask("resources/read", {"uri": f"ui://cubicle/{view}"}))["result"]["contents"]
        assert page["mimeType"] == MEDIA_TYPE
        assert page["_meta"]["ui"]["csp"] == {"frameDomains": ["https://box.example"]}
        assert f'data-view="{view}"' in page["text"]
        assert "key=" in page["text"]  # its script puts one into addresses
        assert KEY not in page["text"]
        pages.add(page["text"].replace(f'data-view="{view}"', ""))
    assert len(pages) == 1
    other, _ = await client(served, UI, "another")
    (again,) = (await other.ask("resources/read", {"uri": "ui://cubicle/port"}))["result"]["contents"]
    assert again["text"].replace('data-view="port"', "") in pages


async def test_what_a_card_shows_is_of_its_chat_and_wakes_nothing(served: House) -> None:
    shows, _ = await client(served, UI, "asleep")
    (content,) = (await shows.ask("resources/read", {"uri": "cubicle://card/asleep"}))["result"]["contents"]
    state = json.loads(content["text"])
    assert (state["chat"], state["base"], state["sandbox"]) == ("asleep", "https://box.example/p/", "none")
    assert (state["browser"], state["ports"]) == (False, [])
    assert state["key"]
    names = [row["chat"] for row in (await served.client.get("/api/sandboxes")).json()["sandboxes"]]
    assert "asleep" not in names


@pytest.mark.parametrize("uri", ["cubicle://card/other", "cubicle://card/", "cubicle://card/a%00", "ui://cubicle/x",
                                 "ui://cubicle/../x", "ui://other/browser"])  # fmt: skip
async def test_what_is_not_the_callers_is_not_found(served: House, uri: str) -> None:
    shows, _ = await client(served, UI)
    assert "error" in await shows.ask("resources/read", {"uri": uri})


async def test_a_port_comes_with_a_link_that_ends_with_the_card(served: House) -> None:
    serving = (
        "python3 -m http.server 8123 >/dev/null 2>&1 & until : </dev/tcp/127.0.0.1/8123; do sleep 0.1; done 2>/dev/null"
    )
    await served.bash("web", serving)
    shows, _ = await client(served, UI, "web")
    (content,) = (await shows.ask("resources/read", {"uri": "cubicle://card/web"}))["result"]["contents"]
    state = json.loads(content["text"])
    (port,) = [one for one in state["ports"] if one["port"] == 8123]
    token = port["url"].partition("cubicle-key=")[2]
    assert int(token.partition(".")[0]) == state["expires"]
