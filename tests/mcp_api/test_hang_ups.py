"""Clients that hang up: their calls end however large the request was, and nothing of them is kept by calls that go on."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from cubicle.journal.journal import Journal
from cubicle.log import _Context, fields_of
from cubicle.mcp_api import event_streams
from cubicle.mcp_api.progress import ProgressStream
from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, say
from tests.mcp_api.test_streaming import call, chat_of, there
from tests.support.service import ACCEPT, Options, messages, raw_post, service_of


async def left_of(service, mark: str, seconds: float) -> str:
    """The processes of a command, when it has had so long to end; empty if it has ended."""
    async with service.fleet.lease(chat_of("stream")) as machine:
        for _ in range(round(seconds / 0.05)):
            _, found = await machine.output(["pgrep", "-f", mark])
            if not found:
                return ""
            await asyncio.sleep(0.05)
        await machine.output(["pkill", "-f", mark])
    return str(found)


@pytest.mark.parametrize("size", [100, 200_000, 1_500_000])
@pytest.mark.parametrize("headers", [(), ("Mcp-Session-Id",)], ids=["plain", "session"])
async def test_a_command_ends_with_its_client_however_large_the_request(service, size, headers):
    """The server stops reading from a client that has sent much: its end must be seen all the same."""
    mark = f"marker-{uuid.uuid4().hex[:8]}"
    body = call(f"exec -a {mark} sleep 60 # ")
    body["params"]["arguments"]["description"] = "x" * size
    async with raw_post(service.url, body, "X-Chat-Id: stream", *(f"{name}: {uuid.uuid4()}" for name in headers)):
        await there(service, mark)
        await asyncio.sleep(0.2)  # until it is followed
    assert not await left_of(service, mark, 10.0)


async def test_whoever_joins_a_call_and_leaves_is_forgotten(service):
    mark = f"marker-{uuid.uuid4().hex[:8]}"
    headers = ("X-Chat-Id: stream", f"Idempotency-Key: {uuid.uuid4()}")
    body = call(f"head -c 20000 /dev/zero | tr '\\0' a; exec -a {mark} sleep 60")
    async with raw_post(service.url, body, *headers):
        await there(service, mark)
        for _ in range(40):
            async with raw_post(service.url, body, *headers):
                await asyncio.sleep(0.01)
        for _ in range(200):
            gc.collect()
            kept = sum(isinstance(each, ProgressStream) for each in gc.get_objects())
            if kept <= 2:
                break
            await asyncio.sleep(0.05)
        assert kept <= 2
    async with service.fleet.lease(chat_of("stream")) as machine:  # one with a key would go on for a while
        await machine.output(["pkill", "-f", mark])


SIZE = 8_000_000


class Large:
    """A tool whose answer is more than sockets and the journal take."""

    name = "large"
    description = "answers much"
    outlives_caller = False
    schema: Mapping[str, Any] = {"type": "object"}

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        return say("x" * SIZE)


async def test_an_answer_that_was_cut_off_is_kept_for_as_long_as_one_that_nobody_was_sent(
    fleet, tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(event_streams, "DELIVERED_SECONDS", 0.0)
    session = (f"Mcp-Session-Id: {uuid.uuid4()}", "MCP-Protocol-Version: 2025-11-25", "X-Chat-Id: stream")
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "large", "arguments": {}}}
    async with (
        asyncio.timeout(60),
        Journal(tmp_path / "journal") as journal,
        service_of(fleet, Options(journal=journal, tools=[Large()])) as service,
    ):
        async with raw_post(service.url, body, *session) as reader:
            got = await reader.readuntil(b'"text":"xxx')
        first = next(line[4:] for line in got.decode().splitlines() if line.startswith("id: "))
        while not any(record.getMessage() == "request" for record in caplog.records):
            await asyncio.sleep(0.005)
        headers = dict(line.split(": ") for line in session) | {"Last-Event-ID": first, "Accept": "text/event-stream"}
        answer = await service.client.get("/mcp", headers=headers)
        assert answer.status_code == 200
        assert len(messages(answer)[-1]["result"]["content"][0]["text"]) == SIZE


def request_of(body: dict[str, Any], chat: str) -> bytes:
    content = json.dumps(body).encode()
    lines = ["POST /mcp HTTP/1.1", "Host: 127.0.0.1", f"Accept: {ACCEPT}", "Content-Type: application/json"]
    lines += [f"X-Chat-Id: {chat}", f"Content-Length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode() + content


async def test_the_log_line_of_a_request_says_nothing_of_the_one_before_it(service, caplog):
    """On one connection of a proxy come requests of several."""
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(_Context())
    await service.bash("true", chat="stream")
    caplog.clear()
    host, port = service.url.removeprefix("http://").split(":")
    for size in (10, 200_000):
        reader, writer = await asyncio.open_connection(host, int(port))
        first = call("true")
        first["params"]["arguments"]["description"] = "x" * size
        for body, chat in ((first, "stream"), ({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}, "other")):
            writer.write(request_of(body, chat))
        head = await asyncio.wait_for(reader.readuntil(b"bash_tool"), 30)  # in the second answer
        assert head.count(b"HTTP/1.1 200") == 2
        writer.close()
        await writer.wait_closed()
    lines = [fields_of(record) for record in caplog.records if record.getMessage() == "request"]
    assert {line.get("tool") for line in lines if line.get("chat") == "stream"} == {"bash_tool"}
    assert {line.get("tool") for line in lines if line.get("chat") == "other"} <= {None}
