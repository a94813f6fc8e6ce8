"""The methods of MCP, in both eras."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tests.support.service import MODERN, Service, messages, raw_post, text

INITIALIZE = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
TOOLS = ["bash_tool", "view", "create_file", "str_replace", "sub_agent"]


async def test_initialize_answers_with_all_that_the_specification_names(service: Service) -> None:
    result = (await service.ask("initialize", INITIALIZE, chat="alpha", headers={"X-User-Email": "a@b.c"}))["result"]
    assert result["protocolVersion"] == "2024-11-05"
    assert {"tools", "resources", "logging"} <= result["capabilities"].keys()
    assert result["serverInfo"]["name"] == "cubicle"
    assert result["serverInfo"]["version"]
    assert result["instructions"] == "You work in chat alpha for a@b.c."


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_version_of_the_handshake_is_negotiated(service: Service, version: str) -> None:
    answer = await service.ask("initialize", INITIALIZE | {"protocolVersion": version})
    assert answer["result"]["protocolVersion"] == version


async def test_an_unknown_version_is_answered_with_the_latest_of_the_handshake(service: Service) -> None:
    answer = await service.ask("initialize", INITIALIZE | {"protocolVersion": "1999-01-01"})
    assert answer["result"]["protocolVersion"] == "2025-11-25"


async def test_initialize_mints_a_session_id_and_later_answers_echo_it(service: Service) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    first = (await service.post(body)).headers["mcp-session-id"]
    assert str(uuid.UUID(first)) == first
    assert (await service.post(body)).headers["mcp-session-id"] != first
    ping = await service.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}, headers={"Mcp-Session-Id": first})
    assert ping.headers["mcp-session-id"] == first
    assert messages(ping)[0]["result"] == {}


async def test_a_session_id_of_before_a_restart_is_good(service: Service) -> None:
    response = await service.post(
        {"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers={"Mcp-Session-Id": str(uuid.uuid4())}
    )
    assert response.status_code == 200


async def test_a_deleted_session_is_gone(service: Service) -> None:
    session = {"Mcp-Session-Id": str(uuid.uuid4())}
    assert (await service.client.delete("/mcp", headers=session)).status_code == 204
    assert (await service.client.delete("/mcp", headers=session)).status_code == 404
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await service.post(ping, headers=session)).status_code == 404
    assert (await service.post(ping, headers={"Mcp-Session-Id": str(uuid.uuid4())})).status_code == 200


async def test_delete_without_a_session_says_what_is_missing(service: Service) -> None:
    response = await service.client.delete("/mcp")
    assert response.status_code == 400
    assert "Mcp-Session-Id" in response.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
async def test_only_post_and_delete_are_methods(service: Service, method: str) -> None:
    response = await service.client.request(method, "/mcp", headers={"Accept": "text/event-stream"})
    assert response.status_code == 405
    assert response.headers["allow"] == "POST, DELETE"


async def test_notifications_are_accepted_without_an_answer(service: Service) -> None:
    response = await service.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (response.status_code, response.content) == (202, b"")


async def test_a_notification_gets_no_answer_of_a_service_that_is_about_to_stop_either(service: Service) -> None:
    """One with the id 0 would be taken for that of the request with this id, which still runs."""
    session = {"Mcp-Session-Id": str(uuid.uuid4())}
    waits = {
        "name": "bash_tool",
        "arguments": {"command": "touch waits; until [ -e go ]; do sleep 0.02; done", "description": "x"},
    }
    call = {"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": waits}
    running = asyncio.create_task(service.post(call, chat="stops", headers=session))
    await service.bash("until [ -e waits ]; do sleep 0.02; done", chat="stops")
    assert service.door._calls is not None
    service.door._calls.draining = True
    try:
        del call["id"]
        response = await service.post(call, chat="stops", headers=session)
        refused = messages(await service.post(call | {"id": 1}, chat="stops", headers=session))
    finally:
        service.door._calls.draining = False
        await service.bash("touch go", chat="stops")
    assert (response.status_code, response.content) == (202, b"")
    assert refused[-1]["id"] == 1
    assert refused[-1]["result"]["isError"]
    assert messages(await running)[-1]["id"] == 0


async def test_the_five_tools_are_listed_with_the_schemas_of_the_specification(service: Service) -> None:
    for answer in (await service.ask("tools/list"), await service.ask_modern("tools/list")):
        tools = {tool["name"]: tool for tool in answer["result"]["tools"]}
        assert list(tools) == TOOLS
        schemas = {name: tool["inputSchema"] for name, tool in tools.items()}
        assert {name: sorted(schema["required"]) for name, schema in schemas.items()} == {
            "bash_tool": ["command", "description"],
            "view": ["path"],
            "create_file": ["content", "path"],
            "str_replace": ["new_str", "old_str", "path"],
            "sub_agent": ["prompt"],
        }
        kinds = {n: {p: v["type"] for p, v in s["properties"].items()} for n, s in schemas.items()}
        assert kinds == {
            "bash_tool": {"command": "string", "description": "string", "cwd": "string", "timeout": "number"},
            "view": {"path": "string", "view_range": "array"},
            "create_file": {"path": "string", "content": "string"},
            "str_replace": {"path": "string", "old_str": "string", "new_str": "string"},
            "sub_agent": {
                "prompt": "string",
                "model": "string",
                "resume_session_id": "string",
                "max_turns": "number",
            },
        }
        assert schemas["sub_agent"]["properties"]["model"]["enum"] == ["sonnet", "opus", "haiku"]
        assert all(len(tool["description"]) > 200 for tool in tools.values())


@pytest.mark.parametrize("path", ["/mcp", "/mcp/computer_use"])
async def test_a_command_runs_on_every_path(service: Service, path: str) -> None:
    assert await service.bash("echo hello", path=path) == "hello\n"


async def test_the_newer_era_discovers_and_calls(service: Service) -> None:
    found = (await service.ask_modern("server/discover", chat="beta"))["result"]
    assert found["supportedVersions"] == [MODERN]
    assert found["instructions"] == "You work in chat beta for None."
    arguments = {"command": "echo modern", "description": "test"}
    answer = await service.ask_modern("tools/call", {"name": "bash_tool", "arguments": arguments})
    assert text(answer["result"]) == "modern\n"


async def test_the_newer_era_has_no_session_id(service: Service) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "notifications/cancelled", "params": {"requestId": 1}}
    response = await service.post(body, headers={"MCP-Protocol-Version": MODERN, "Mcp-Session-Id": "abc"})
    assert "mcp-session-id" not in response.headers


async def test_an_unknown_tool_is_an_error_of_the_protocol(service: Service) -> None:
    for ask in (service.ask, service.ask_modern):
        answer = await ask("tools/call", {"name": "rm_rf", "arguments": {}})
        assert answer["error"]["code"] == -32602
        assert "rm_rf" in answer["error"]["message"]


async def test_an_unknown_method_is_not_found(service: Service) -> None:
    assert (await service.ask("no/such"))["error"]["code"] == -32601


async def test_the_prompt_is_not_a_prompt_of_the_protocol(service: Service) -> None:
    for ask in (service.ask, service.ask_modern):
        error = (await ask("prompts/get", {"name": "system"}))["error"]
        assert (error["code"], error["message"]) == (-32602, "Unknown prompt: system")


async def test_prompts_and_completions_are_not_declared_and_empty_for_who_asks_all_the_same(service: Service) -> None:
    started = await service.ask("initialize", INITIALIZE)
    discovered = await service.ask_modern("server/discover")
    for answer in (started, discovered):
        assert not {"prompts", "completions"} & answer["result"]["capabilities"].keys()
    wanted = {"ref": {"type": "ref/prompt", "name": "system"}, "argument": {"name": "a", "value": "b"}}
    for ask in (service.ask, service.ask_modern):
        assert (await ask("prompts/list"))["result"]["prompts"] == []
        assert (await ask("completion/complete", wanted))["result"]["completion"]["values"] == []


async def test_a_bad_argument_is_named_in_an_error_of_the_tool(service: Service) -> None:
    result = await service.call("bash_tool", {"command": "true", "description": "x", "timeout": "soon"})
    assert result["isError"]
    assert "`timeout`" in text(result)


async def test_sub_agent_without_an_agent_says_what_to_do(service: Service) -> None:
    result = await service.call("sub_agent", {"task": "write a poem"})
    assert result["isError"]
    assert "SUB_AGENT_CLI" in text(result)


async def test_two_chats_have_two_sandboxes_and_letter_case_counts(service: Service) -> None:
    await service.bash("echo secret > note", chat="Case")
    assert await service.bash("cat note", chat="Case") == "secret\n"
    assert await service.bash("ls -A", chat="case") == "(no output)"


async def test_blanks_around_a_chat_id_make_no_second_sandbox(service: Service) -> None:
    await service.bash("echo one > blank", chat="blanks")
    arguments = {"command": "cat blank", "description": "test"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash_tool", "arguments": arguments}}
    async with raw_post(service.url, call, "X-Chat-Id:   blanks  \t") as reader:
        assert "one" in (await reader.read()).decode()
