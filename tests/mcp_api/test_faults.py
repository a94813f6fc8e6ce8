"""What goes wrong in the service itself: an HTTP 500 as long as the answer has not begun, and nothing of its inside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.files.uploads import Uploads
from cubicle.machine.errors import StartFailed
from cubicle.mcp_api import direct_calls, handlers
from cubicle.tools.base import Answer, Call
from cubicle.tools.registry import Registry
from cubicle.tools.sub_agent import Task
from tests.mcp_api.test_errors import assert_problem
from tests.support.service import MODERN, Options, Service, fleet_of, messages, modern_meta, service_of, text

SECRET = "secret /var/lib/cubicle/data"
TOOL = {"name": "bash_tool", "arguments": {"command": "true", "description": "test"}}
READ = {"uri": "file://uploads/chat/a.txt"}
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


async def broken(*_args: Any, **_options: Any) -> Any:
    raise RuntimeError(SECRET)


def unfit(*_args: Any, **_options: Any) -> Any:
    return handlers.types.TextContent.model_validate({"text": object()})  # type: ignore[attr-defined]


async def asked(service: Service, method: str, params: dict[str, Any], *, modern: bool) -> httpx.Response:
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method} if modern else {}
    if modern:
        params = {**params, "_meta": modern_meta()}
        if name := params.get("name") or params.get("uri"):
            headers["Mcp-Name"] = name
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await service.post(body, chat="chat", headers=headers)


def _break(target: Any, name: str, how: Callable[..., Any] = broken) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(target, name, how)


def _break_content(patch: pytest.MonkeyPatch) -> None:
    """Of an answer, on the SDK's way and beside it."""
    patch.setattr(handlers, "content_of", unfit)
    patch.setattr(direct_calls, "_fields_of", unfit)


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("method", "params", "breaks"),
    [
        ("tools/list", {}, _break(handlers.types, "ListToolsResult", unfit)),  # type: ignore[attr-defined]
        ("tools/call", TOOL, _break(Registry, "run")),
        ("tools/call", TOOL, _break_content),
        ("resources/list", {}, _break(Uploads, "list")),
        ("resources/list", {}, _break(handlers, "_resources", unfit)),
        ("resources/read", READ, _break(Uploads, "read")),
    ],
)
async def test_an_unforeseen_error_of_a_method_is_a_500(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    params: dict[str, Any],
    breaks: Callable[[pytest.MonkeyPatch], None],
    modern: bool,
) -> None:
    await service.uploads.save(Chat("chat"), "a.txt", _pieces(b"a"), limit=10)
    breaks(monkeypatch)
    with caplog.at_level(logging.ERROR):
        response = await asked(service, method, params, modern=modern)
    assert_problem(response, 500)
    assert not any(word in response.text for word in ("secret", "Traceback", "pydantic", ".py"))
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"]


async def _pieces(*parts: bytes) -> Any:
    for part in parts:
        yield part


@pytest.mark.parametrize(("method", "modern"), [("initialize", False), ("server/discover", True)])
async def test_instructions_that_cannot_be_made_are_a_500(fleet: Any, method: str, modern: bool) -> None:
    async with service_of(fleet, Options(instructions=broken)) as service:
        response = await asked(service, method, {} if modern else INITIALIZE, modern=modern)
    assert_problem(response, 500)
    assert "secret" not in response.text


class BrokenAgent:
    """Fails in a way nobody foresaw, after it has said something where it is asked to."""

    async def run(self, call: Call, task: Task) -> Answer:
        if task.prompt == "talk":
            call.report("working\n")
            await asyncio.sleep(0.5)  # the first batch goes out after 0.1
        raise RuntimeError(SECRET)


@pytest.mark.parametrize("modern", [False, True])
async def test_a_tool_that_outlives_its_caller_fails_like_the_others(fleet: Any, modern: bool) -> None:
    async with service_of(fleet, Options(sub_agent=BrokenAgent())) as service:
        params = {"name": "sub_agent", "arguments": {"prompt": "quiet"}}
        assert_problem(await asked(service, "tools/call", params, modern=modern), 500)


@pytest.mark.parametrize("modern", [False, True])
async def test_an_answer_that_has_begun_ends_with_the_error(fleet: Any, modern: bool) -> None:
    async with service_of(fleet, Options(sub_agent=BrokenAgent())) as service:
        params = {"name": "sub_agent", "arguments": {"prompt": "talk"}, "_meta": {"progressToken": "t"}}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "sub_agent"}
        if modern:
            params["_meta"] |= modern_meta()  # type: ignore[operator]
        body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        response = await service.post(body, headers=headers if modern else {})
    assert response.status_code == 200
    first, *_, last = messages(response)
    assert first["method"] == "notifications/progress"
    assert (last["id"], last["error"]["code"]) == (5, -32603)
    assert "secret" not in response.text


class NoStart(MemoryDriver):
    """Starts nothing once it is told so."""

    refuses = False

    async def start(self, name: str, owner: str | None) -> None:
        if self.refuses:
            raise StartFailed("The host's disk is full.")
        await super().start(name, owner)


@pytest.mark.parametrize("modern", [False, True])
async def test_resources_of_a_stopped_sandbox_say_so_and_a_call_says_why_it_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modern: bool
) -> None:
    async with fleet_of(tmp_path, kind=NoStart) as fleet, service_of(fleet) as service:
        await service.uploads.save(Chat("chat"), "a.txt", _pieces(b"a"), limit=10)
        await fleet.stop(Chat("chat"))
        monkeypatch.setattr(NoStart, "refuses", True)
        for method, params in (("resources/list", {}), ("resources/read", READ)):
            response = await asked(service, method, params, modern=modern)
            assert response.status_code == 200
            error = messages(response)[-1]["error"]
            assert error["code"] == -32010
            assert "is stopped; its files are kept" in error["message"]
        result = await service.call(**_tool(), chat="chat")
        assert result["isError"]
        assert "The host's disk is full." in text(result)
        for method, params in (("resources/list", {}), ("resources/read", READ)):
            error = messages(await asked(service, method, params, modern=modern))[-1]["error"]
            assert "The host's disk is full." in error["message"]
        monkeypatch.setattr(NoStart, "refuses", False)
        assert not (await service.call(**_tool(), chat="chat"))["isError"]
        listed = messages(await asked(service, "resources/list", {}, modern=modern))[-1]["result"]
        assert [resource["name"] for resource in listed["resources"]] == ["a.txt"]


def _tool() -> dict[str, Any]:
    return {"tool": TOOL["name"], "arguments": TOOL["arguments"]}
