"""Two workers over one DATA_DIR: whichever is asked, the owner of the chat answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from cubicle.core.chat import Chat
from cubicle.journal import reading
from cubicle.tools.demo_script import STEPS
from tests.support.members import Worker, answer_of, workers
from tests.support.process import ACCEPT

_SIZE = 100 * 1024**2
_MORE_MEMORY = 24 * 1024**2


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sequence[Worker]]:
    async with workers(tmp_path_factory.mktemp("pair")) as found:
        yield found


def resident(worker: Worker) -> int:
    """Bytes of memory that the worker has of its own."""
    lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


async def test_a_chat_has_one_sandbox_whoever_is_asked(pair: Sequence[Worker]) -> None:
    first, second = pair
    await first.bash("one", "echo kept > ~/file")
    assert await second.bash("one", "cat ~/file") == "kept\n"
    assert await second.bash("two", "cat ~/file 2>/dev/null || echo none") == "none\n"
    assert await first.bash("two", "echo $((6*7))") == "42\n"


async def test_a_request_has_one_id_wherever_it_is_answered(pair: Sequence[Worker]) -> None:
    owner, _ = pair
    await owner.bash("one", "true")
    for worker in pair:
        answer = await worker.client.get("/files/one/none")
        assert answer.status_code == 404
        (id,) = answer.headers.get_list("X-Request-Id")
        async with asyncio.timeout(20):  # the line comes behind the answer
            while not all(id in member.log() for member in {owner, worker}):
                await asyncio.sleep(0.02)


async def test_both_are_asked_for_a_new_chat_at_once(pair: Sequence[Worker]) -> None:
    for number in range(5):
        asked = (worker.bash(f"race-{number}", "cat /etc/hostname; echo x >> ~/runs") for worker in [*pair] * 4)
        await asyncio.gather(*asked)
        assert await pair[0].bash(f"race-{number}", "wc -l < ~/runs") == "8\n"


async def test_every_worker_lists_all_sandboxes(pair: Sequence[Worker]) -> None:
    await pair[0].bash("mine", "true")
    await pair[1].bash("yours", "true")
    for worker in pair:
        async with asyncio.timeout(20):
            while True:
                rows = (await worker.client.get("/api/sandboxes")).json()["sandboxes"]
                if {"mine", "yours"} <= {row["chat"] for row in rows}:
                    break
                await asyncio.sleep(0.05)


async def test_the_demo_is_played_by_the_owner_of_its_chat_whoever_is_asked(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("demo", "true")
    begun = await other.client.post("/api/demo")
    assert (begun.status_code, begun.json()["chat"]) == (202, "demo")
    begun = await owner.client.post("/api/demo")
    assert (begun.status_code, begun.json()["state"]) == (202, "playing")
    async with asyncio.timeout(60):
        for worker in pair:  # either shows how far it is
            while (await worker.client.get("/api/home")).json()["demo"]["step"] < 2:
                await asyncio.sleep(0.05)
    entries = list(reading.all_entries(owner._data / "journal" / Chat("demo").digest))
    assert [entry.fields.get("description") for entry in entries].count(STEPS[0].description) == 1
    assert (await other.client.delete("/api/sandboxes/demo")).status_code == 204


async def test_the_home_page_shows_the_chats_and_clients_of_all(pair: Sequence[Worker]) -> None:
    async def card(worker: Worker, chat: str) -> dict[str, Any]:
        home = (await worker.client.get("/api/home")).json()
        return next((card for card in home["chats"] if card["chat"] == chat), {})

    await pair[0].bash("home-1", "echo first")
    await pair[1].bash("home-2", "echo second")
    for worker in pair:
        for chat, said in (("home-1", "first\n"), ("home-2", "second\n")):
            async with asyncio.timeout(30):
                while (await card(worker, chat)).get("output") != said:
                    await asyncio.sleep(0.05)
    await pair[1].bash("home-1", "echo changed")  # by the other one, which does not own it
    for worker in pair:
        async with asyncio.timeout(30):
            while (seen := await card(worker, "home-1")).get("output") != "changed\n":
                await asyncio.sleep(0.05)
        assert (seen["state"], seen["running"]) == ("running", False)
        home = (await worker.client.get("/api/home")).json()
        assert [one["chat"] for one in home["chats"]].count("home-1") == 1
        assert home["client"]["chat"] in ("home-1", "home-2")  # within one second, whoever it was


async def test_the_metrics_of_both_are_on_one_page(pair: Sequence[Worker]) -> None:
    await asyncio.gather(*(worker.bash("metrics", "true") for worker in pair))
    for worker in pair:
        page = (await worker.client.get("/metrics")).text
        assert 'worker="1"' in page
        assert 'worker="2"' in page
        families = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
        assert len(families) == len(set(families))
        own = (await worker.client.get("/metrics?own=1")).text
        assert "cubicle_build_info{" in own
        assert "worker=" not in own


async def test_a_sandbox_is_stopped_and_removed_by_whoever_is_asked(pair: Sequence[Worker]) -> None:
    first, second = pair
    await first.bash("ending", "echo kept > ~/file")
    assert (await second.client.post("/api/sandboxes/ending/stop")).json()["stopped"]
    assert (await second.client.get("/files/ending/")).status_code == 409
    assert await second.bash("ending", "cat ~/file") == "kept\n"
    assert (await second.client.delete("/api/sandboxes/ending")).status_code == 204
    assert await second.bash("ending", "cat ~/file 2>/dev/null || echo none") == "none\n"


async def test_an_upload_of_any_size_goes_through_a_worker_that_keeps_nothing_of_it(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("files", "true")
    block = bytes(range(256)) * 4096
    digest = hashlib.sha256(block * (_SIZE // len(block))).hexdigest()

    async def body() -> AsyncIterator[bytes]:
        for _ in range(_SIZE // len(block)):
            yield block

    await other.client.put("/api/uploads/files/small", content=b"x")
    before, most = resident(other), 0
    sending = asyncio.create_task(
        other.client.put("/api/uploads/files/large.bin", content=body(), headers={"Content-Length": str(_SIZE)})
    )
    while not sending.done():
        most = max(most, resident(other))
        await asyncio.sleep(0.02)
    answer = sending.result()
    assert (answer.status_code, answer.json()["sha256"]) == (201, digest)
    assert most - before < _MORE_MEMORY
    received = hashlib.sha256()
    async with other.client.stream("GET", "/files/files/uploads/large.bin") as response:
        assert response.headers["content-length"] == str(_SIZE)
        async for chunk in response.aiter_bytes():
            received.update(chunk)
            most = max(most, resident(other))
    assert received.hexdigest() == digest
    assert most - before < _MORE_MEMORY
    chunked = await other.client.put("/api/uploads/files/chunked.bin", content=body())
    assert (chunked.status_code, chunked.json()["sha256"]) == (201, digest)


def audited(worker: Worker, size: int) -> int:
    """Records of uploads of this size in the logs of both."""
    folders = [path for path in worker._data.glob("audit*") if path.is_dir()]
    entries = [entry for folder in folders for entry in reading.all_entries(folder)]
    return sum(entry.kind == "upload" and entry.fields.get("size") == size for entry in entries)


async def test_the_audit_log_tells_of_a_request_once(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("audited", "true")
    content = b"x" * 12_345
    assert (await other.client.put("/api/uploads/audited/file", content=content)).status_code == 201
    async with asyncio.timeout(20):
        while not (now := await asyncio.to_thread(audited, owner, len(content))):
            await asyncio.sleep(0.05)
    assert now == 1
    assert len(list(owner._data.glob("audit*"))) == 2


async def test_a_part_of_a_file_and_its_head(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("parts", "printf 0123456789 > /mnt/user-data/outputs/ten")
    part = await other.client.get("/files/parts/outputs/ten", headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.text) == (206, "234")
    head = await other.client.head("/files/parts/outputs/ten")
    assert (head.status_code, head.headers["content-length"], head.text) == (200, "10", "")
    tag = (await owner.client.get("/files/parts/outputs/ten")).headers["etag"]
    same = await other.client.get("/files/parts/outputs/ten", headers={"If-None-Match": tag})
    assert (same.status_code, same.text) == (304, "")
    missing = await other.client.get("/files/parts/outputs/none")
    assert missing.status_code == 404


async def test_events_come_through_a_worker_as_they_happen(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("events", "true")
    async with other.client.stream("GET", "/api/chats/events/events") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await owner.bash("events", "echo from-the-owner")
        async with asyncio.timeout(20):
            async for line in lines:
                if "from-the-owner" in line:
                    break


async def test_a_websocket_carries_bytes_both_ways_through_a_worker(pair: Sequence[Worker]) -> None:
    owner, other = pair
    program = "import socket\ns=socket.create_server(('127.0.0.1',7777))\nwhile 1:\n c=s.accept()[0]\n"
    program += " while d:=c.recv(65536): c.sendall(d.upper())\n c.close()\n"
    await owner.bash("socket", f"cat > ~/echo.py <<'X'\n{program}X\nsetsid python3 ~/echo.py >/dev/null 2>&1 &")
    await owner.bash(
        "socket", "until python3 -c 'import socket;socket.create_connection((\"127.0.0.1\",7777))'; do :; done"
    )
    url = other.url.replace("http", "ws") + "/api/chats/socket/ports/7777/tcp"
    async with connect(url, max_size=None) as client:
        await client.send(b"hello")
        assert await client.recv() == b"HELLO"
        sent = b"abcdefgh" * 4096
        got = b""
        for _ in range(64):
            await client.send(sent)
        while len(got) < 64 * len(sent):
            message = await client.recv()
            assert isinstance(message, bytes)
            got += message
        assert got == sent.upper() * 64
        await client.send("eof")
        assert await client.recv() == "eof"
    assert client.close_code == 1000


async def test_the_terminal_of_a_chat_opens_through_a_worker(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("no-terminal", "true")
    async with connect(other.url.replace("http", "ws") + "/terminal/no-terminal/ws", subprotocols=["tty"]) as client:  # type: ignore[list-item]
        with pytest.raises(Exception):  # noqa: B017 - nothing runs there, and the close code says so
            await client.recv()
    direct = connect(owner.url.replace("http", "ws") + "/terminal/no-terminal/ws", subprotocols=["tty"])  # type: ignore[list-item]
    async with direct as same:
        with pytest.raises(Exception):  # noqa: B017
            await same.recv()
    assert (client.close_code, client.close_reason) == (same.close_code, same.close_reason)


async def test_an_answer_is_resumed_at_the_other_worker(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("resumed", "true")
    session = {"Mcp-Session-Id": str(uuid.uuid4()), "MCP-Protocol-Version": "2025-11-25", "X-Chat-Id": "resumed"}
    wait = "echo begun; until [ -e go ]; do sleep 0.02; done; echo over"
    arguments = {
        "name": "bash_tool",
        "arguments": {"command": wait, "description": "test"},
        "_meta": {"progressToken": "t"},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments})
    last = ""
    sent = {"Accept": ACCEPT, "Content-Type": "application/json"} | session
    async with other.client.stream("POST", "/mcp", content=body, headers=sent) as response:
        async for line in response.aiter_lines():
            last = line.removeprefix("id: ") if line.startswith("id: ") else last
            if "begun" in line:
                break
    await other.bash("resumed", "touch go")
    for worker in pair:
        resumed = await worker.client.get(
            "/mcp", headers={"Accept": "text/event-stream", "Last-Event-ID": last} | session
        )
        assert answer_of(resumed)["result"]["content"][0]["text"] == "begun\nover\n"


async def test_a_call_is_repeated_at_the_other_worker_and_runs_once(pair: Sequence[Worker]) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    outputs = [await worker.bash("repeated", "echo x >> ~/runs; date +%N", **key) for worker in [*pair, *pair]]
    assert len(set(outputs)) == 1
    assert await pair[1].bash("repeated", "wc -l < ~/runs") == "1\n"


async def test_a_session_that_was_ended_at_one_worker_is_ended_at_both(pair: Sequence[Worker]) -> None:
    session = {"Mcp-Session-Id": str(uuid.uuid4())}
    for worker in pair:
        answer_of(await worker.ask("ended", "tools/list", {}, **session))
    ended = await pair[1].client.delete("/mcp", headers={"X-Chat-Id": "ended"} | session)
    assert ended.status_code == 204
    for worker in pair:
        assert (await worker.ask("ended", "tools/list", {}, **session)).status_code == 404


async def test_the_chat_that_meta_names_is_found(pair: Sequence[Worker]) -> None:
    async def runs(worker: Worker, command: str) -> str:
        arguments = {"command": command, "description": "test"}
        params = {"name": "bash_tool", "arguments": arguments, "_meta": {"openai/session": "talk-1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Accept": ACCEPT, "Content-Type": "application/json"}
        answer = answer_of(await worker.client.post("/mcp", content=json.dumps(body), headers=headers))
        return str(answer["result"]["content"][-1]["text"])

    await runs(pair[0], "echo meant > ~/by-meta")
    assert "meant" in await runs(pair[1], "cat ~/by-meta")


async def test_a_client_that_goes_away_ends_its_call_at_the_owner(pair: Sequence[Worker]) -> None:
    owner, other = pair
    await owner.bash("leaving", "true")
    async with httpx.AsyncClient(base_url=other.url, timeout=60, trust_env=False) as client:
        arguments = {"command": "touch ~/begun; sleep 3188", "description": "test"}
        params = {"name": "bash_tool", "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": "leaving"}
        asked = asyncio.create_task(client.post("/mcp", content=body, headers=headers))
        await owner.bash("leaving", "until [ -e ~/begun ]; do sleep 0.02; done")
        asked.cancel()
        await asyncio.wait([asked])
    async with asyncio.timeout(30):
        while await owner.bash("leaving", "pgrep -cfx 'sleep 3188' || true") != "0\n":
            await asyncio.sleep(0.05)
