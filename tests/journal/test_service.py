"""The journal of a true service: what was done in a chat is there when the service was started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from cubicle import removal, settings
from cubicle.app import running
from cubicle.cli import main
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_driver
from cubicle.journal import reading
from cubicle.journal.format import Entry
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve

CHAT = "kept"
HOSTILE = "printf '\\033]0;owned\\007<script>alert(1)</script>\\n'"


@pytest.fixture
async def chosen(tmp_path: Path) -> AsyncIterator[Settings]:
    chosen = settings.load(driver="memory", data_dir=tmp_path / "data", pool_size=0)
    yield chosen
    await empty(make_driver(chosen))


@asynccontextmanager
async def client_of(chosen: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running(chosen) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield client


async def call(client: httpx.AsyncClient, tool: str, **arguments: Any) -> str:
    params = {"name": tool, "arguments": {"description": "test", **arguments}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": CHAT}
    return (await client.post("/mcp", content=json.dumps(body), headers=headers)).text


async def shown(client: httpx.AsyncClient, until: int) -> list[dict[str, Any]]:
    """The first events of the chat's activity."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(60), client.stream("GET", f"/api/chats/{CHAT}/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if sum(event["type"] != "service" for event in events) >= until:
                    break
    return [event for event in events if event["type"] != "service"]


def entries(chosen: Settings) -> list[Entry]:
    return reading.read_entries(chosen.data_dir / "journal" / Chat(CHAT).digest, 0, 10_000)


async def test_after_a_restart_nothing_is_missing(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        assert "one" in await call(client, "bash_tool", command="echo one")
        await call(client, "create_file", path="/home/assistant/a.txt", content="text")
        await call(client, "bash_tool", command="exit 3")
        assert (await client.put(f"/api/uploads/{CHAT}/note.txt", content=b"note")).status_code == 201
        before = await shown(client, 9)
    kinds = [entry.kind for entry in entries(chosen) if entry.kind != "output"]  # which a slow start brings
    assert kinds == ["call", "lifecycle", "end", "call", "end", "call", "end", "upload"]
    async with client_of(chosen) as client:
        after = await shown(client, len(before))
    assert len(after) == len(before)
    for event in before:  # in another order at most: a sandbox is made after its call began
        again = next(one for one in after if (one["type"], one["id"]) == (event["type"], event["id"]))
        event.pop("at", None), again.pop("at", None)
        assert again == event


async def test_a_call_that_ran_when_the_service_was_killed_is_shown_as_interrupted(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        await call(client, "bash_tool", command="echo one")
    folder = chosen.data_dir / "journal" / Chat(CHAT).digest
    [(_, path)] = reading.segments(folder)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    assert b'"kind":"end"' in last
    path.write_bytes(b"".join(lines))
    (chosen.data_dir / "journal" / "numbers.json").unlink()
    async with client_of(chosen) as client:
        end = next(event for event in await shown(client, 3) if event["type"] == "end")
    assert (end["ending"], end["error"]) == ("interrupted", True)


async def test_removing_a_chat_hides_its_calls_and_deleting_it_deletes_them(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        await call(client, "bash_tool", command="echo first")
        assert (await client.delete(f"/api/sandboxes/{CHAT}")).status_code == 204
        await call(client, "bash_tool", command="echo second")
        events = await shown(client, 4)
        assert "second" in json.dumps(events)
        assert "first" not in json.dumps(events)
    assert "removed" in [entry.fields.get("what") for entry in entries(chosen)]
    at_once = chosen.model_copy(update={"trash_days": 0.0})
    async with client_of(at_once) as client:
        assert (await client.delete(f"/api/sandboxes/{CHAT}")).status_code == 204
    assert entries(chosen) == []


async def test_a_person_reads_and_checks_it_in_a_terminal(chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(chosen) as client:
        await call(client, "bash_tool", command=HOSTILE)
    monkeypatch.setenv("DRIVER", "memory")
    monkeypatch.setenv("DATA_DIR", str(chosen.data_dir))

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["journal", CHAT, *arguments])
        return done.exit_code, done.output

    code, text = await asyncio.to_thread(run)
    assert code == 0
    assert "bash_tool" in text
    assert "<script>" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    code, text = await asyncio.to_thread(run, "--json")
    kinds = [json.loads(line)["kind"] for line in text.splitlines()]
    assert [kind for kind in kinds if kind != "output"] == ["call", "lifecycle", "end"]
    assert (await asyncio.to_thread(run, "--verify"))[0] == 0
    [(_, path)] = reading.segments(chosen.data_dir / "journal" / Chat(CHAT).digest)
    path.write_bytes(path.read_bytes().replace(b"bash_tool", b"bash_fool", 1))
    code, text = await asyncio.to_thread(run, "--verify")
    assert code == 1
    assert "line 1: it was changed" in text
    code, text = await asyncio.to_thread(
        lambda: (lambda d: (d.exit_code, d.output))(CliRunner().invoke(main, ["journal", "none"]))
    )
    assert code == 1
    assert "There is no journal" in text


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k1"}])
async def test_a_call_that_is_refused_before_there_is_a_sandbox_leaves_nothing(
    key: dict[str, str], chosen: Settings
) -> None:
    folder = chosen.data_dir / "journal" / Chat(CHAT).digest
    async with client_of(chosen) as client:
        client.headers.update(key)
        assert "command" in await call(client, "bash_tool")
        assert not folder.exists()
        client.headers.pop("Idempotency-Key", None)
        assert "one" in await call(client, "bash_tool", command="echo one")
        await call(client, "bash_tool")
    assert not {Chat(CHAT).digest} ^ {path.name for path in folder.parent.iterdir() if path.is_dir()}
    kinds = [entry.kind for entry in entries(chosen) if entry.kind != "output"]
    assert kinds == ["call", "lifecycle", "end", "call", "end"]


async def test_a_sandbox_without_a_journal_gets_one_with_its_next_call(chosen: Settings) -> None:
    folder = chosen.data_dir / "journal" / Chat(CHAT).digest
    async with client_of(chosen) as client:
        await call(client, "bash_tool", command="echo one")
    await asyncio.to_thread(removal.remove_journal, chosen.data_dir, Chat(CHAT).digest)
    async with client_of(chosen) as client:
        await call(client, "bash_tool", command="echo two")
    assert folder.exists()
    assert [entry.kind for entry in entries(chosen) if entry.kind in ("call", "end")] == ["call", "end"]
