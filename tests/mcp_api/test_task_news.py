"""News of tasks, and questions of their tools: in the extension of 2026-07-28, and what 2025-11-25 has of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal
from cubicle.mcp_api import subscriptions, task_methods
from cubicle.mcp_api.subscriptions import ListenStream
from cubicle.mcp_api.task_input import BadReply, TaskInput
from cubicle.tools.questions import CannotAsk, Question
from tests.clients.fixture_tools import FIXTURES
from tests.mcp_api.test_tasks import EXTENSION, OLDER, bash
from tests.support.service import ACCEPT, MODERN, Options, Service, fleet_of, messages, modern_meta, service_of

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ALL = {"extensions": {EXTENSION: {}}, "elicitation": {}}
ACKNOWLEDGED, NEWS = "notifications/subscriptions/acknowledged", "notifications/tasks"
YES = {"action": "accept", "content": {"confirm": True}}


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    folder: Path = tmp_path_factory.mktemp("news")
    async with (
        fleet_of(folder / "fleet") as fleet,
        Journal(folder / "journal") as journal,
        service_of(fleet, Options(journal=journal, tools=FIXTURES)) as service,
    ):
        yield service


async def ask(
    service: Service, method: str, params: dict[str, Any], declared: dict[str, Any] = ALL, **options: Any
) -> dict[str, Any]:
    named = {"Mcp-Name": params["taskId"]} if "taskId" in params else {}
    meta = {"_meta": {CAPABILITIES: declared}}
    return await service.ask_modern(method, params | meta, headers=named, **options)


async def begin(service: Service, call: dict[str, Any], **options: Any) -> str:
    """The id of a task."""
    task = (await ask(service, "tools/call", call, **options))["result"]
    assert task["resultType"] == "task", task
    return str(task["taskId"])


async def get(service: Service, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(service, "tasks/get", {"taskId": id}))["result"]
    return found


def assert_empty(answer: dict[str, Any]) -> None:
    """An acknowledgement, and nothing of the task."""
    assert answer["result"].pop("_meta")
    assert answer["result"] == {"resultType": "complete"}


def waiting(name: str) -> dict[str, Any]:
    return bash(f"mkfifo {name}; cat {name}")


async def end(service: Service, name: str) -> None:
    """Ends a command that waits at a pipe, once it has made it."""
    await service.bash(f"until [ -p {name} ]; do sleep 0.01; done; echo over > {name}")


@asynccontextmanager
async def listening(
    service: Service, tasks: object, declared: dict[str, Any] = ALL, chat: str = "test"
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat}
    headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
    params = {"notifications": {"taskIds": tasks}, "_meta": modern_meta() | {CAPABILITIES: declared}}
    body = {"jsonrpc": "2.0", "id": "listen", "method": "subscriptions/listen", "params": params}
    async with service.client.stream("POST", "/mcp", content=json.dumps(body), headers=headers) as response:

        async def read() -> AsyncIterator[dict[str, Any]]:
            if response.headers["content-type"] == "application/json":
                await response.aread()
                yield response.json()
                return
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

        yield read()


async def soon(heard: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await asyncio.wait_for(anext(heard), 60)


async def until(heard: AsyncIterator[dict[str, Any]], status: str) -> dict[str, Any]:
    """The next news of this status."""
    while True:
        message = await soon(heard)
        assert message["method"] == NEWS
        assert message["params"].pop("_meta") == {"io.modelcontextprotocol/subscriptionId": "listen"}
        if message["params"]["status"] == status:
            found: dict[str, Any] = message["params"]
            return found


async def test_a_client_that_listens_is_told_the_result_of_its_task(service: Service) -> None:
    id = await begin(service, waiting("one"))
    async with listening(service, [id, "0" * 32, "../x", {"a": 1}]) as heard:
        first = await soon(heard)
        assert (first["method"], first["params"]["notifications"]) == (ACKNOWLEDGED, {"taskIds": [id]})
        assert (await until(heard, "working"))["taskId"] == id
        await end(service, "one")
        told = await until(heard, "completed")
    assert told["result"]["content"][0]["text"] == "over\n"
    state = await get(service, id)
    assert {name: state[name] for name in told} == told
    async with listening(service, [id]) as heard:  # it has ended: nobody waits for nothing
        assert (await soon(heard))["method"] == ACKNOWLEDGED
        assert await until(heard, "completed") == told


async def test_nobody_hears_of_another_chats_task(service: Service) -> None:
    id = await begin(service, waiting("two"))
    async with listening(service, [id], chat="another") as heard:
        first = await soon(heard)
        assert (first["method"], first["params"]["notifications"]) == (ACKNOWLEDGED, {})
        assert (await ask(service, "tasks/cancel", {"taskId": id}))["result"]["resultType"] == "complete"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(heard), 0.3)


async def test_who_cannot_listen_is_told_why(service: Service) -> None:
    async with listening(service, ["0" * 32], {"elicitation": {}}) as heard:
        error = (await soon(heard))["error"]
    assert (error["code"], error["data"]["requiredCapabilities"]) == (-32021, {"extensions": {EXTENSION: {}}})
    async with listening(service, ["x"] * (task_methods.MAX_WATCHED + 1)) as heard:
        assert (await soon(heard))["error"]["code"] == -32602


async def test_a_question_is_told_and_answered_in_parts(service: Service) -> None:
    id = await begin(service, {"name": "multi_input", "arguments": {}})
    async with listening(service, [id]) as heard:
        await soon(heard)
        asked = (await until(heard, "input_required"))["inputRequests"]
        (one, first), (two, _) = asked.items()
        assert (first["method"], first["params"]["message"]) == ("elicitation/create", "Who are you?")
        reply = {"action": "accept", "content": {"name": "Ann"}}
        for bad in (5, {}, {"action": "yes"}, {"action": "accept", "content": [1]}):
            refused = await ask(service, "tasks/update", {"taskId": id, "inputResponses": {one: bad, two: reply}})
            assert refused["error"]["code"] == -32602
        assert list((await get(service, id))["inputRequests"]) == [one, two]
        other = {"taskId": id, "inputResponses": {one: reply}}
        assert (await ask(service, "tasks/update", other, chat="another"))["error"]["code"] == -32602
        update = {"taskId": id, "inputResponses": {one: reply, "never-asked": reply}}
        for _ in range(2):  # what is answered is not answered again
            assert_empty(await ask(service, "tasks/update", update))
            update["inputResponses"] = {one: {"action": "accept", "content": {"name": "Eve"}}}
        assert list((await until(heard, "input_required"))["inputRequests"]) == [two]
        await ask(service, "tasks/update", {"taskId": id, "inputResponses": {two: {"action": "decline"}}})
        assert (await until(heard, "completed"))["result"]["content"][0]["text"] == "Ann and None"
    assert_empty(await ask(service, "tasks/update", {"taskId": id, "inputResponses": {one: reply}}))


async def test_a_task_that_waits_for_an_answer_can_be_cancelled(service: Service) -> None:
    id = await begin(service, {"name": "confirm_delete", "arguments": {"filename": "a"}})
    assert (await get(service, id))["status"] == "input_required"
    await ask(service, "tasks/cancel", {"taskId": id})
    state = await get(service, id)
    assert state["status"] == "cancelled"
    assert "inputRequests" not in state


async def test_a_client_that_cannot_be_asked_is_not(service: Service) -> None:
    call = {"name": "confirm_delete", "arguments": {}}
    result = (await ask(service, "tools/call", call, {"extensions": {EXTENSION: {}}}))["result"]
    assert result["isError"]
    assert "asks its user" in result["content"][0]["text"]
    task = (await service.ask("tools/call", call | {"task": {}}, headers=OLDER))["result"]["task"]
    found = await service.ask("tasks/result", {"taskId": task["taskId"]}, headers=OLDER)
    assert found["result"]["isError"]
    first = {"name": "test_tool_with_task", "arguments": {}}
    error = (await ask(service, "tools/call", first, {"extensions": {EXTENSION: {}}}))["error"]
    assert (error["code"], error["data"]["requiredCapabilities"]) == (-32021, {"elicitation": {}})
    assert (await service.ask("tools/call", first | {"task": {}}, headers=OLDER))["error"]["code"] == -32021


async def test_what_the_user_is_asked_first_nobody_else_can_answer(service: Service) -> None:
    call: dict[str, Any] = {"name": "test_tool_with_task", "arguments": {"user_name": {"name": "Mallory"}}}
    asked = (await ask(service, "tools/call", call))["result"]
    assert (asked["resultType"], list(asked["inputRequests"])) == ("input_required", ["user_name"])
    for reply, greeted in (({"action": "accept", "content": {"name": "Ann"}}, "Ann"), ({"action": "decline"}, "who")):
        id = await begin(service, call | {"inputResponses": {"user_name": reply}})
        async with listening(service, [id]) as heard:
            await soon(heard)
            assert f"Hello, {greeted}" in (await until(heard, "completed"))["result"]["content"][0]["text"]
    bad = await ask(service, "tools/call", call | {"inputResponses": {"user_name": 5}})
    assert bad["error"]["code"] == -32602


async def test_in_2025_11_25_who_waits_for_the_result_is_told_the_status_before_it(service: Service) -> None:
    task = (await service.ask("tools/call", waiting("three") | {"task": {}}, headers=OLDER))["result"]["task"]
    body = {"jsonrpc": "2.0", "id": 7, "method": "tasks/result", "params": {"taskId": task["taskId"]}}
    result = asyncio.create_task(service.post(body, headers=OLDER))
    calls = service.door._calls
    assert calls is not None
    while not calls.followed:  # the request has to be there before the end
        await asyncio.sleep(0.01)
    await end(service, "three")
    *_, status, last = messages(await result)
    assert status["method"] == "notifications/tasks/status"
    assert (status["params"]["taskId"], status["params"]["status"]) == (task["taskId"], "completed")
    assert status["params"]["ttl"] == task["ttl"]
    assert last["result"]["content"][0]["text"] == "over\n"
    assert [message.get("id") for message in messages(await service.post(body, headers=OLDER))] == [7]


async def test_a_stream_whose_client_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_MAX_WAITING", 2)
    stream, sent = ListenStream(Chat("a")), []

    class Session:
        async def send_notification(self, notification: Any, _request: object) -> None:
            sent.append(notification)

    class Context:
        session, request_id = Session(), 1

    async def made(_meta: dict[str, Any]) -> str:
        return "news"

    for name in ("a", "a", "a", "b", "b", "c", "d"):
        stream.put(name, made)
    async with asyncio.timeout(10):
        await stream.serve(Context(), types.SubscriptionFilter())  # type: ignore[arg-type]
    assert sent[1:] == ["news", "news"]


async def test_a_tool_asks_a_bounded_number_of_questions() -> None:
    changes: list[int] = []
    task: TaskInput = TaskInput(lambda: changes.append(len(task.open)))
    question = Question("?", {})
    with pytest.raises(CannotAsk):
        await task.ask([question])
    task.may_ask = True
    with pytest.raises(CannotAsk):
        await task.ask([question] * 100)
    asking = asyncio.create_task(task.ask([question] * 2))
    await asyncio.sleep(0)
    keys = list(task.open)
    with pytest.raises(BadReply):
        task.answer({keys[0]: {"action": "accept"}, keys[1]: None})
    task.answer({key: {"action": "cancel"} for key in keys})
    assert [reply.action for reply in await asking] == ["cancel", "cancel"]
    assert changes == [2, 0]
