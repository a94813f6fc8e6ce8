"""Bodies that nobody should send: never a 500, never a hang, never a word of another chat."""

from __future__ import annotations

import asyncio
import json
import os
import random
import string
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.mcp_api import handlers, request_check, transport
from tests.support.service import ACCEPT, MODERN, Service, modern_meta

BODIES = 200_000 if os.environ.get("CUBICLE_LONG") else 1_000 if os.environ.get("CUBICLE_FAST") else 3_000
SECRET = "the-secret-of-another-chat"
METHODS = [
    *("initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/read", "server/discover"),
    *("resources/templates/list", "logging/setLevel", "notifications/cancelled", "notifications/initialized"),
    *("prompts/list", "prompts/get", "completion/complete", "subscriptions/listen", "tasks/get", "", "x" * 300),
]
TOOLS = ["bash_tool", "view", "create_file", "str_replace", "sub_agent", "none", "", None, 7]
KEYS = ["name", "arguments", "uri", "_meta", "cursor", "requestId", "level", "protocolVersion", "capabilities", "path"]
WORDS = [
    *("file://uploads/other/secret.txt", "file://uploads/fuzz/..%2f..%2fother", "/tmp/x", "/etc/passwd", "true"),
    *("\x00", "\ufffd", "é" * 50, "{{x}}", "../" * 20, "2024-11-05", MODERN, "info", "a" * 2000, ""),
]


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(10 if depth < 4 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return rng.choice([True, False])
        case 2:
            return rng.choice([0, 1, -1, 2**31, 2**63, 10**30, rng.randrange(1000)])
        case 3:
            return rng.choice([0.5, -1e308, 1e-9])
        case 4 | 5:
            return rng.choice(WORDS)
        case 6:
            return "".join(rng.choices(string.printable, k=rng.randrange(20)))
        case 7:
            return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice([*KEYS, "x"]): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def arguments(rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return value(rng)
    names = [
        "command",
        "description",
        "cwd",
        "timeout",
        "path",
        "view_range",
        "content",
        "old_str",
        "new_str",
        "prompt",
    ]
    found = {name: value(rng) for name in rng.sample(names, rng.randrange(5))}
    if isinstance(found.get("command"), str):
        found["command"] = "true"
    return found


def body(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(200))
    if rng.random() < 0.1:
        return json.dumps(value(rng)).encode()
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": rng.randrange(100), "method": rng.choice(METHODS)}
    message["params"] = {key: value(rng) for key in rng.sample(KEYS, rng.randrange(4))}
    if message["method"] == "tools/call":
        message["params"] |= {"name": rng.choice(TOOLS), "arguments": arguments(rng)}
    if message["method"] == "subscriptions/listen" and rng.random() < 0.8:
        names = ["resourcesListChanged", "toolsListChanged", "resourceSubscriptions", "x"]
        wanted = {name: rng.choice([True, WORDS, value(rng)]) for name in rng.sample(names, rng.randrange(4))}
        message["params"] |= {"notifications": wanted}
    if message["method"] == "resources/read":
        message["params"]["uri"] = rng.choice(WORDS)
    if rng.random() < 0.4:
        message["params"]["_meta"] = modern_meta() | rng.choice([{}, {"progressToken": value(rng)}])
    if rng.random() < 0.3:
        message[rng.choice(["jsonrpc", "id", "method", "params", "x"])] = value(rng)
    if rng.random() < 0.1:
        message.pop(rng.choice(list(message)))
    encoded = json.dumps(message).encode()
    if rng.random() < 0.15:
        at = rng.randrange(len(encoded))
        encoded = encoded[:at] + rng.randbytes(rng.randrange(3)) + encoded[at + rng.randrange(3) :]
    return encoded


async def ask(app: Callable[..., Awaitable[None]], headers: dict[str, str], content: bytes) -> tuple[int, bytes]:
    """One request to the application itself, without a socket between.

    A stream that listens would never end; the client of one hangs up at the first event.
    """
    status, out = 0, bytearray()
    heard = asyncio.Event()
    pending: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if pending:
            return pending.pop()
        await heard.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        out.extend(message.get("body", b""))
        if b"notifications/subscriptions/acknowledged" in out:
            heard.set()

    raw = [(name.lower().encode(), text.encode("latin-1", "replace")) for name, text in headers.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "headers": raw,
        "query_string": b"",
        "http_version": "1.1",
    }
    await app(scope, receive, send)
    return status, bytes(out)


@pytest.mark.timeout(900)
async def test_no_body_breaks_the_door(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service.fleet.lease(Chat("other")) as machine:
        await machine.write("/mnt/user-data/uploads/secret.txt", SECRET.encode(), as_root=True)
        await machine.write("/home/assistant/secret.txt", SECRET.encode())
    await service.bash("true", chat="fuzz")
    failures: list[BaseException | None] = []
    for part in (request_check, transport, handlers):
        monkeypatch.setattr(part.log, "exception", lambda *_, **__: failures.append(sys.exc_info()[1]))
    rng = random.Random(20260728)
    statuses: set[int] = set()
    for number in range(BODIES):
        content = body(rng)
        headers = {"Host": "localhost", "Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": "fuzz"}
        if rng.random() < 0.3:
            headers |= {
                "MCP-Protocol-Version": rng.choice([MODERN, "2025-06-18", "x"]),
                "Mcp-Method": rng.choice(METHODS),
            }
        if rng.random() < 0.2:
            headers["Mcp-Session-Id"] = rng.choice(WORDS)
        async with asyncio.timeout(60):
            status, answer = await ask(service.door, headers, content)
        statuses.add(status)
        assert status < 500, (number, content, answer)
        assert SECRET.encode() not in answer, (number, content)
        assert b"Traceback" not in answer
    assert not failures
    assert service.uploads.changes.count() == 0
    assert {200, 202, 400} <= statuses
