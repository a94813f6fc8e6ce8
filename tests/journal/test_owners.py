"""Whose a journal is: of one chat of one tenant, and of nobody when the chat was removed, until it is brought back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from cubicle import settings
from cubicle.app import running
from cubicle.cli import main
from cubicle.drivers.factory import make_driver
from cubicle.journal.format import Entry
from cubicle.journal.removed_parts import removed_parts
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve

CHAT = "kept"
NOTE = "/home/assistant/note.txt"
SECRET = "an-open-secret"
OLDER = {"MCP-Protocol-Version": "2025-11-25"}


@pytest.fixture
async def chosen(tmp_path: Path) -> AsyncIterator[Settings]:
    keys = tmp_path / "keys.json"
    await asyncio.to_thread(keys.write_text, json.dumps({"key-of-the-first": "first", "key-of-the-second": "second"}))
    chosen = settings.load(driver="memory", data_dir=tmp_path / "data", pool_size=0, api_keys_file=keys)
    yield chosen
    await empty(make_driver(chosen))


class Person:
    """Somebody with a key."""

    def __init__(self, client: httpx.AsyncClient, name: str) -> None:
        self._client = client
        self.headers = {"Authorization": f"Bearer key-of-the-{name}"}

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": CHAT} | OLDER | self.headers
        text = (await self._client.post("/mcp", content=json.dumps(body), headers=headers)).text
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        answer: dict[str, Any] = json.loads(lines[-1] if lines else text)
        return answer

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        more = {} if tool == "create_file" else {"description": "test"}
        result: dict[str, Any] = (await self.ask("tools/call", name=tool, arguments=more | arguments))["result"]
        return result

    async def start_task(self, command: str) -> str:
        arguments = {"command": command, "description": "test"}
        answer = await self.ask("tools/call", name="bash_tool", arguments=arguments, task={})
        return str(answer["result"]["task"]["taskId"])

    async def activity(self) -> str:
        """What Activity shows at once."""
        heard: list[str] = []
        url = f"/api/chats/{CHAT}/events"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2), self._client.stream("GET", url, headers=self.headers) as stream:
                assert stream.status_code == 200
                async for line in stream.aiter_lines():
                    heard.append(line)
        return "\n".join(heard)

    async def replay(self) -> str:
        """What the downloaded file has after its template."""
        answer = await self._client.get(f"/api/chats/{CHAT}/replay", headers=self.headers)
        return answer.text if answer.status_code == 200 else ""

    async def undo(self, call: str) -> int:
        return (await self._client.post(f"/api/chats/{CHAT}/calls/{call}/undo", headers=self.headers)).status_code

    async def remove(self) -> None:
        answer = await self._client.delete(f"/api/sandboxes/{CHAT}", headers=self.headers)
        assert answer.status_code == 204


@contextlib.asynccontextmanager
async def people(chosen: Settings) -> AsyncIterator[tuple[Person, Person]]:
    async with (
        running(chosen) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield Person(client, "first"), Person(client, "second")


async def change(person: Person) -> str:
    """Two versions of a file; the id of the call that wrote the second."""
    await person.call("create_file", path=NOTE, content=SECRET)
    await person.call("create_file", path=NOTE, content="two")
    shown = [json.loads(line[6:]) for line in (await person.activity()).splitlines() if line.startswith("data: ")]
    return str([event["id"] for event in shown if event["type"] == "end"][-1])


async def test_another_tenant_gets_nothing_of_a_chat_of_the_same_name(chosen: Settings) -> None:
    async with people(chosen) as (mine, theirs):
        call = await change(mine)
        task = await mine.start_task(f"echo {SECRET}")
        for has_sandbox in (False, True):
            if has_sandbox:
                await theirs.call("create_file", path=NOTE, content="theirs")
            assert SECRET not in await theirs.activity()
            assert SECRET not in await theirs.replay()
            assert await theirs.undo(call) in (404, 410)
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                answer = await theirs.ask(method, taskId=task)
                assert answer["error"]["code"] == -32602
                assert SECRET not in json.dumps(answer)
            assert (await theirs.ask("tasks/list"))["result"]["tasks"] == []
        assert SECRET in await mine.activity()
        assert SECRET in await mine.replay()
        assert await mine.undo(call) == 200
        assert (await mine.call("bash_tool", command=f"cat {NOTE}"))["content"][0]["text"] == SECRET
        assert (await theirs.call("bash_tool", command=f"cat {NOTE}"))["content"][0]["text"] == "theirs"


async def test_a_removed_chat_shows_nothing_until_it_is_brought_back(
    chosen: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with people(chosen) as (mine, _):
        call = await change(mine)
        task = await mine.start_task("echo done")
        assert (await mine.ask("tasks/result", taskId=task))["result"]["content"][0]["text"] == "done\n"
        await mine.remove()
        for _ in range(2):
            assert SECRET not in await mine.activity()
            assert SECRET not in await mine.replay()
            assert await mine.undo(call) in (404, 410)
            assert "error" in await mine.ask("tasks/get", taskId=task)
            assert (await mine.ask("tasks/list"))["result"]["tasks"] == []
            await mine.call("bash_tool", command="echo anew")  # the chat goes on with another sandbox
        assert "echo anew" in await mine.activity()
        await mine.remove()
    monkeypatch.setenv("DRIVER", "memory")
    monkeypatch.setenv("DATA_DIR", str(chosen.data_dir))
    for name in await asyncio.to_thread(_removed, chosen):
        arguments = ["undelete", name, "--as", CHAT, "--tenant", "first"]
        done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert done.exit_code == 0, done.output
    async with people(chosen) as (mine, _):
        assert (await mine.call("bash_tool", command=f"cat {NOTE}"))["content"][0]["text"] == "two"
        assert SECRET in await mine.activity()
        shown = await mine.replay()
        assert SECRET in shown
        assert "echo anew" not in shown
        assert await mine.undo(call) == 200
        assert (await mine.call("bash_tool", command=f"cat {NOTE}"))["content"][0]["text"] == SECRET


def _removed(chosen: Settings) -> list[str]:
    """The sandbox that was removed first, which has the file."""
    return [note.parents[1].name for note in (chosen.data_dir / "memory-trash").glob("*/home/note.txt")]


def test_what_was_removed_is_hidden_by_its_sandbox() -> None:
    def lifecycle(number: int, what: str, sandbox: str) -> Entry:
        return Entry(number, 0.0, "lifecycle", {"what": what, "sandbox": sandbox})

    entries = [Entry(1, 0.0, "call", {}), lifecycle(2, "created", "a"), lifecycle(3, "removed", "a")]
    assert removed_parts(entries) == [(1, 3)]
    entries += [Entry(4, 0.0, "call", {}), lifecycle(5, "created", "b"), lifecycle(6, "removed", "b")]
    assert removed_parts(entries) == [(1, 3), (4, 6)]
    entries += [Entry(7, 0.0, "call", {}), lifecycle(8, "started", "a")]
    assert removed_parts(entries) == [(4, 6)]
    entries += [lifecycle(9, "removed", "a")]
    assert sorted(removed_parts(entries)) == [(1, 3), (4, 6), (7, 9)]
    assert removed_parts([]) == []
