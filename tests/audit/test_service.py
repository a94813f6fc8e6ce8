"""The audit log of a true service: everything that somebody did is in it, and nothing that was said."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle import log as logs
from cubicle import removal, settings
from cubicle.app import running
from cubicle.audit.audit import Audit
from cubicle.audit.verify import check_log
from cubicle.chat.journal_notes import JournalNotes
from cubicle.chat.links import kept_secret
from cubicle.cli import main
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_driver
from cubicle.http_api.audited import EVENTS, NO_EVENTS
from cubicle.http_api.routes import ROWS, WEBSOCKET, Use
from cubicle.journal import reading
from cubicle.journal.journal import no_journal
from cubicle.settings import Settings
from tests.audit.disk import fill, small_disk
from tests.support.emptying import empty
from tests.support.service import ACCEPT, serve

CHAT, KEY, USER = "secret-room", "operator-key-1234", "ann@example.com"
BEARER = {"Authorization": f"Bearer {KEY}", "X-User-Email": USER}


@pytest.fixture
async def chosen(tmp_path: Path) -> AsyncIterator[Settings]:
    chosen = settings.load(driver="memory", data_dir=tmp_path / "data", pool_size=0, mcp_api_key=KEY, trash_days=0)
    yield chosen
    await empty(make_driver(chosen))


@pytest.fixture
def full_disk(chosen: Settings) -> Iterator[Path]:
    """The folder of the audit log, which has no room."""
    with small_disk(removal.audit_folder(chosen.data_dir)) as folder:
        fill(folder / "others")
        yield folder


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
    headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": CHAT, **BEARER}
    return (await client.post("/mcp", content=json.dumps(body), headers=headers)).text


def records(chosen: Settings, kind: str = "") -> list[dict[str, Any]]:
    found = reading.all_entries(removal.audit_folder(chosen.data_dir))
    return [{"kind": each.kind, **each.fields} for each in found if not kind or each.kind == kind]


def whole(chosen: Settings) -> str:
    folder = removal.audit_folder(chosen.data_dir)
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def digest_of(chosen: Settings) -> str:
    return Audit(Path(), kept_secret(chosen.data_dir)).chat_digest(Chat(CHAT))


async def test_a_call_is_told_of_with_who_and_hashes_and_without_what_was_said(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        assert "hush-hush" in await call(client, "bash_tool", command="echo hush-hush")
        await call(client, "bash_tool", command="echo hush-hush")
        await call(client, "bash_tool", command="exit 3")
        await call(client, "view", path="no absolute path")
    calls = records(chosen, "call")
    assert [each["outcome"] for each in calls] == ["done", "done", "failed", "bad_argument"]
    first, second, third, _ = calls
    assert first["tenant"] == "main"
    assert first["user"] == USER
    assert first["key"]
    assert first["role"] == "operator"
    assert first["chat"] == digest_of(chosen)
    assert first["tool"] == "bash_tool"
    assert first["seconds"] >= 0
    assert first["result_size"] > 0
    assert first["arguments"] == second["arguments"] != third["arguments"]
    assert first["result"] == second["result"] != third["result"]
    assert first["request"]
    text = whole(chosen)
    for said in ("hush-hush", CHAT, KEY, "no absolute path"):
        assert said not in text
    assert check_log(removal.audit_folder(chosen.data_dir)).problems == []


async def test_a_long_call_is_told_of_while_it_runs(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        running_call = asyncio.create_task(call(client, "bash_tool", command="sleep 2; echo ended"))
        async with asyncio.timeout(30):
            while not records(chosen, "call_running"):
                await asyncio.sleep(0.05)
        assert not running_call.done()
        assert "ended" in await running_call
    [begun], [ended] = records(chosen, "call_running"), records(chosen, "call")
    assert begun["call"] == ended["call"]
    assert begun["arguments"] == ended["arguments"]


async def test_files_and_sandboxes_and_what_is_refused_are_told_of(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        put = await client.put(f"/api/uploads/{CHAT}/private-name.txt", content=b"note", headers=BEARER)
        assert put.status_code == 201
        got = await client.get(f"/files/{CHAT}/uploads/private-name.txt", headers=BEARER)
        assert got.content == b"note"
        assert (await client.get(f"/files/{CHAT}", headers=BEARER)).status_code == 200
        assert (await client.get(f"/files/{CHAT}/uploads", headers=BEARER)).status_code == 200
        assert (await client.delete(f"/api/uploads/{CHAT}/private-name.txt", headers=BEARER)).status_code == 204
        for _ in range(5):
            assert (await client.get(f"/files/{CHAT}/x", headers={"Authorization": "Bearer wrong-key"})).is_error
        assert (await client.post(f"/api/sandboxes/{CHAT}/stop", headers=BEARER)).status_code == 200
        assert (await client.delete(f"/api/sandboxes/{CHAT}", headers=BEARER)).status_code == 204
    [upload], [download], [deleted] = (records(chosen, kind) for kind in ("upload", "download", "delete"))
    assert upload["size"] == 4
    assert upload["content"]
    assert upload["outcome"] == "done"
    assert upload["user"] == USER
    assert download["size"] == 4
    assert download["path"]
    assert download["address"] == "127.0.0.1"
    assert deleted["what"] == "uploads.remove"
    assert [each["what"] for each in records(chosen, "sandbox")] == ["admin.stop", "admin.remove"]
    assert [each["what"] for each in records(chosen, "lifecycle")][-2:] == ["stopped", "deleted"]
    refused = records(chosen, "refused")
    assert (refused[0]["status"], refused[0]["count"]) == (401, 1)
    assert len(refused) == 2, "a flood of wrong keys would fill the log"
    assert sum(each["count"] for each in refused) == 5
    text = whole(chosen)
    assert "wrong-key" not in text
    assert "private-name" not in text
    assert CHAT not in text, "the chat is removed: only hashes are left"


async def test_sign_ins_and_links_are_told_of(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        await call(client, "bash_tool", command="true")
        made = await client.post(f"/api/links/{CHAT}?access=view&label=for+bob", headers=BEARER)
        assert made.status_code == 201
        url = made.json()["url"]
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as visitor:
            path = "/preview" + url.split("/preview", 1)[1] if "/preview" in url else url
            seen = await visitor.get(f"{client.base_url}{path}", headers={"Accept": "text/html"})
            assert seen.status_code == 200, seen.text
        assert (await client.delete(f"/api/links/{CHAT}", headers=BEARER)).status_code == 204
        assert (await client.post("/login", data={"key": KEY, "next": "/admin"})).status_code == 303
        assert (await client.post("/login", data={"key": "no such key at all"})).status_code == 401
    assert [each["what"] for each in records(chosen, "link")] == ["links.make", "links.revoke_all"]
    [used] = records(chosen, "link_use")
    assert used["access"] == "view"
    assert used["by"] == "link"
    assert used["chat"] == digest_of(chosen)
    [signed_in] = records(chosen, "sign_in")
    assert signed_in["tenant"] == "main"
    assert signed_in["key"]
    assert signed_in["outcome"] == "done"
    assert records(chosen, "refused")[0]["what"] == "login.post"
    text = whole(chosen)
    assert KEY not in text
    assert "key=" not in text
    assert "for bob" not in text


async def test_changes_of_keys_are_told_of_by_the_service_and_the_command_line(
    chosen: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(chosen.data_dir))
    monkeypatch.setenv("API_KEYS_FILE", str(tmp_path / "keys.json"))
    chosen.data_dir.mkdir()
    made = await asyncio.to_thread(CliRunner().invoke, main, ["keys", "add", "--tenant", "acme"], prog_name="cubicle")
    assert made.exit_code == 0, made.output
    keyed = chosen.model_copy(update={"api_keys_file": tmp_path / "keys.json"})
    async with client_of(keyed):
        id = json.loads((tmp_path / "keys.json").read_text())["keys"][0]["id"]
        ended = await asyncio.to_thread(CliRunner().invoke, main, ["keys", "revoke", id], prog_name="cubicle")
        assert ended.exit_code == 0, ended.output
        async with asyncio.timeout(30):
            while not records(chosen, "key") or len(records(chosen, "command")) < 2:
                await asyncio.sleep(0.05)
    [change] = records(chosen, "key")
    assert (change["what"], change["key"], change["tenant"]) == ("revoked", id, "acme")
    assert [each["what"] for each in records(chosen, "command")] == ["cubicle keys add", "cubicle keys revoke"]
    assert made.output.split()[-1] not in whole(chosen)


async def test_egress_decisions_are_told_of_with_host_and_rule(chosen: Settings) -> None:
    async with client_of(chosen) as client:
        many = "for i in 1 2 3 4 5; do curl -s --max-time 20 http://10.0.0.1/private?token=secret-word; done; true"
        await call(client, "bash_tool", command=many)
        async with asyncio.timeout(30):
            while sum(each["count"] for each in records(chosen, "egress")) < 5:
                await asyncio.sleep(0.1)
    egress = records(chosen, "egress")
    assert {(each["decision"], each["host"], each["port"]) for each in egress} == {("denied", "10.0.0.1", "80")}
    assert sum(each["count"] for each in egress) == 5
    assert egress[0]["chat"] == digest_of(chosen)
    assert egress[0]["rule"]
    assert "secret-word" not in whole(chosen)


async def test_attaching_and_detaching_are_told_of(chosen: Settings) -> None:
    server = "import socket; s = socket.create_server(('127.0.0.1', 18461)).accept()[0]; exec('while s.recv(9): pass')"
    async with client_of(chosen) as client:
        up = "for i in $(seq 100); do ss -ltn | grep -q 18461 && break; sleep 0.1; done"
        await call(client, "bash_tool", command=f'python3 -c "{server}" >/dev/null 2>&1 & {up}')
        url = str(client.base_url).replace("http", "ws", 1)
        async with connect(f"{url}/api/chats/{CHAT}/ports/18461/tcp", additional_headers=BEARER, proxy=None) as socket:
            await socket.send(b"typed text")
            async with asyncio.timeout(30):
                while not records(chosen, "port"):
                    await asyncio.sleep(0.05)
            assert [each["outcome"] for each in records(chosen, "port")] == ["attached"]
        async with asyncio.timeout(30):
            while len(records(chosen, "port")) < 2:
                await asyncio.sleep(0.05)
        with pytest.raises(ConnectionClosed):
            async with connect(f"{url}/terminal/{CHAT}/ws", proxy=None) as stranger:
                await stranger.recv()
    attached, detached = records(chosen, "port")
    assert detached["outcome"] == "detached"
    assert attached["user"] == detached["user"] == USER
    assert records(chosen, "refused")[-1]["status"] == 401
    assert "typed text" not in whole(chosen)


def test_a_take_over_is_told_of() -> None:
    told: list[tuple[Chat, str, str]] = []
    notes = JournalNotes(no_journal())
    notes.told = lambda *one: told.append(one)
    for _ in range(3):
        notes.take_over(Chat(CHAT), "browser", "Ann")
    assert told == [(Chat(CHAT), "browser", "Ann")]


async def test_while_the_log_cannot_be_written_nothing_new_begins_and_then_it_goes_on(
    chosen: Settings, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cubicle.audit.writer.RETRY_SECONDS", 0.05)
    async with client_of(chosen) as client:
        assert "audit log of this service cannot be written" in await call(client, "bash_tool", command="echo no")
        put = await client.put(f"/api/uploads/{CHAT}/a.txt", content=b"note", headers=BEARER)
        assert put.status_code == 503
        assert "audit log" in put.json()["detail"]
        assert put.headers["Retry-After"]
        assert (await client.get(f"/files/{CHAT}/uploads/a.txt", headers=BEARER)).status_code == 503
        assert (await client.post("/login", data={"key": KEY})).status_code == 503
        assert (await client.get(f"/files/{CHAT}/uploads/a.txt")).status_code == 401, "strangers are told nothing"
        assert (await client.get("/health")).status_code == 200
        (full_disk / "others").unlink()
        async with asyncio.timeout(30):
            while "back" not in await call(client, "bash_tool", command="echo back"):
                await asyncio.sleep(0.05)
    outcomes = [each["outcome"] for each in records(chosen, "call")]
    assert outcomes == ["done"], "what was not begun is not told of: it would fill the memory"
    assert records(chosen, "upload") == []


async def test_the_command_line_checks_shows_and_exports_it(
    chosen: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(chosen) as client:
        await call(client, "bash_tool", command="true")
    monkeypatch.setenv("DATA_DIR", str(chosen.data_dir))

    async def run(*arguments: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, main, ["audit", *arguments], prog_name="cubicle")
        return done.exit_code, done.output

    code, checked = await run("verify")
    assert code == 0, checked
    head = checked.split("Head: ")[1].strip()
    assert (await run("verify", "--head", head))[0] == 0
    assert (await run("verify", "--head", head[:-1] + ("0" if head[-1] != "0" else "1")))[0] == 1
    assert "bash_tool" in (await run("tail", "--kind", "call", "--user", USER))[1]
    assert "bash_tool" in (await run("tail", "--chat", CHAT))[1]
    assert "bash_tool" not in (await run("tail", "--chat", "another"))[1]
    code, _ = await run("export", "--output", str(tmp_path / "copy.jsonl"))
    assert code == 0
    [(_, path)] = reading.segments(removal.audit_folder(chosen.data_dir))
    assert (tmp_path / "copy.jsonl").read_bytes() == path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"bash_tool", b"view_tool", 1))
    code, checked = await run("verify")
    assert code == 1
    assert "NOT GOOD" in checked


async def test_every_line_of_a_request_names_the_user_and_the_tenant(chosen: Settings) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("json", stream)
    try:
        async with client_of(chosen) as client:
            await call(client, "bash_tool", command="echo one")
            await client.put(f"/api/uploads/{CHAT}/a.txt", content=b"note", headers=BEARER)
            await client.get(f"/files/{CHAT}/uploads/a.txt", headers=BEARER)
            await client.get(f"/files/{CHAT}/uploads/none.txt", headers=BEARER)
        await asyncio.to_thread(logs.flush)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    of_requests = [line for line in lines if "request" in line]
    assert len(of_requests) >= 4
    for line in of_requests:
        assert (line.get("user"), line.get("tenant")) == (USER, "main"), line


def test_every_route_that_changes_something_is_told_of() -> None:
    changing = {
        row.handler for row in ROWS if row.methods != "GET" or row.use is not Use.LOOKS or row.methods == WEBSOCKET
    }
    assert changing - set(EVENTS) - NO_EVENTS == set()
    assert set(EVENTS) <= {row.handler for row in ROWS}
