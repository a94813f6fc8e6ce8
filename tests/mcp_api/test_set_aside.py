"""Long values in the newer era arrive and leave whole, though the SDK does not see them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core.chat import Chat
from cubicle.mcp_api.jsonrpc import JsonRpcMessage
from cubicle.mcp_api.raw_json import RawJson
from cubicle.mcp_api.set_aside import SetAside
from tests.support.service import MODERN, Service, modern_meta, text

LONG = "a line with €, 😀 and \\ in it\n" * 60_000
"""More than 1 MB, from which on it is set aside."""

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just("long " * 100),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(values)
def test_what_was_set_aside_comes_back_in_its_place(value: Any) -> None:
    aside = SetAside()
    sent = json.loads(aside.shortened(JsonRpcMessage("tools/call", 1, {"name": "a", "arguments": {"x": value}})))
    assert sent["params"]["name"] == "a"
    assert "long long" not in json.dumps(sent)
    assert aside.restored(sent["params"]["arguments"]) == {"x": value}


@pytest.mark.anyio
async def test_an_answer_is_filled_and_its_length_is_right() -> None:
    aside, sent = SetAside(), []

    async def send(message: Any) -> None:
        sent.append(message)

    marked = aside.marked({"contents": [RawJson.of({"a": LONG})], "resources": RawJson(b"[2]"), "plain": "c"})
    body = json.dumps({"result": marked}).encode()
    filling = aside.filling(send)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await filling({"type": "http.response.start", "status": 200, "headers": headers})
    await filling({"type": "http.response.body", "body": body})
    start, *parts = sent
    answer = b"".join(part["body"] for part in parts)
    result = json.loads(answer)["result"]
    assert result["contents"] == [{"a": LONG}]
    assert (result["resources"], result["plain"]) == ([2], "c")
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(answer)
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
    assert max(len(part["body"]) for part in parts) <= 2 * 256 * 1024


@pytest.mark.anyio
async def test_what_stays_long_is_refused_and_a_notification_stays_one(service: Service) -> None:
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bash_tool"}
    arguments = {"description": "test", "command": "true"}
    params = {"name": "bash_tool", "arguments": arguments, "_meta": {**modern_meta(), "x": "é" * 2_000_000}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    content = json.dumps(body, ensure_ascii=False).encode()
    assert (await service.post(content, headers=headers)).status_code == 413
    params |= {"arguments": {"description": "test", "command": LONG}, "_meta": modern_meta()}
    assert (await service.post({**body, "id": None}, headers=headers)).status_code == 400
    del body["id"]
    assert (await service.post(body, headers=headers)).status_code == 202


@pytest.mark.anyio
@pytest.mark.parametrize("session", [{}, {"Mcp-Session-Id": "a-session"}])
@pytest.mark.parametrize("long", ["id", "progressToken"])
async def test_what_each_notification_would_repeat_is_short_in_the_era_of_the_handshake(
    service: Service, session: dict[str, str], long: str
) -> None:
    """To encode 30 MB holds up the event loop for a quarter second, and output comes ten times a second."""
    params: dict[str, Any] = {"name": "bash_tool", "arguments": {"description": "test", "command": "echo begun"}}
    body = {"jsonrpc": "2.0", "id": "x" * 2_000_000 if long == "id" else 1, "method": "tools/call", "params": params}
    if long == "progressToken":
        params["_meta"] = {"progressToken": "x" * 2_000_000}
    assert (await service.post(body, headers=session)).status_code == 413


@pytest.mark.anyio
async def test_a_long_text_is_written_as_it_came(service: Service) -> None:
    arguments = {"description": "test", "path": "/tmp/long", "file_text": LONG}
    answer = await service.ask_modern("tools/call", {"name": "create_file", "arguments": arguments})
    assert not answer["result"]["isError"], answer
    assert (await service.bash("wc -c < /tmp/long")).strip() == str(len(LONG.encode()))
    edit = {"description": "test", "path": "/tmp/long", "old_str": LONG, "new_str": "short"}
    answer = await service.ask_modern("tools/call", {"name": "str_replace", "arguments": edit})
    assert not answer["result"]["isError"], text(answer["result"])
    assert await service.bash("cat /tmp/long") == "short"


@pytest.mark.anyio
async def test_a_long_resource_is_read_as_it_is(service: Service) -> None:
    blob = bytes(range(256)) * 8_000
    async with service.fleet.lease(Chat("test")) as machine:
        for name, content in (("long.txt", LONG.encode()), ("long.bin", blob)):
            await machine.write(f"/mnt/user-data/uploads/{name}", content, as_root=True)
    for ask in (service.ask, service.ask_modern):
        (found,) = (await ask("resources/read", {"uri": "file://uploads/test/long.txt"}))["result"]["contents"]
        assert found["text"] == LONG
        (found,) = (await ask("resources/read", {"uri": "file://uploads/test/long.bin"}))["result"]["contents"]
        assert base64.b64decode(found["blob"]) == blob
        listed = (await ask("resources/list"))["result"]["resources"]
        assert {each["name"] for each in listed} == {"long.txt", "long.bin"}
