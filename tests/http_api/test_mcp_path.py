"""MCP's requests go past the middleware that would let them pass: every answer is as if they did not."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cubicle import settings
from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.http_api import mcp_path
from tests.support.emptying import empty
from tests.support.service import serve

KEY = "key-of-the-tests"
ORIGIN = "https://chat.example.org"
_OWN = frozenset({"date", "x-request-id", "mcp-session-id"})
"""Of each answer another."""
_CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
_TRUE = _CALL | {"params": {"name": "bash_tool", "arguments": {"command": "true", "description": "x"}}}
_BODIES = [json.dumps(_TRUE).encode(), b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', b"[]", b"{", b""]
_USUAL = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "X-Chat-Id": "one",
    "Authorization": f"Bearer {KEY}",
}
_OTHERS: list[dict[str, str | None]] = [
    {},
    {"Authorization": None},
    {"Authorization": "Bearer wrong"},
    {"Accept": "text/html"},
    {"Accept": None, "Content-Type": None},
    {"Content-Type": "text/plain"},
    {"X-Chat-Id": None},
    {"X-Chat-Id": "../x"},
    {"Host": "elsewhere.example"},
    {"Origin": ORIGIN},
    {"Origin": "https://other.example"},
    {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-chat-id"},
    {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"},
    {"MCP-Protocol-Version": "1900-01-01"},
    {"Last-Event-ID": "none"},
    {"Cookie": "cubicle=x", "Sec-Fetch-Dest": "document"},
]


@pytest.fixture(scope="module", params=[KEY, ""], ids=["with a key", "open"])
async def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    data = tmp_path_factory.mktemp("data")
    chosen = settings.load(driver="memory", data_dir=data, pool_size=0, mcp_api_key=request.param, cors_origins=ORIGIN)
    async with running(chosen) as app, serve(app) as address:
        yield address
    await empty(make_driver(chosen))


def _requests() -> list[tuple[str, dict[str, str], bytes]]:
    found = [("POST", {}, body) for body in _BODIES]
    found += [(method, other, _BODIES[0]) for method, other in itertools.product(("POST", "OPTIONS"), _OTHERS)]
    found += [(method, other, b"") for method in ("GET", "DELETE", "PUT", "HEAD") for other in _OTHERS]
    return [
        (method, {name: value for name, value in (_USUAL | other).items() if value is not None}, body)
        for method, other, body in found
    ]


async def _answers(url: str) -> list[Any]:
    answers = []
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        for method, headers, content in _requests():
            for path in ("/mcp", "/mcp?x=1"):
                answer = await client.request(method, path, headers=headers, content=content)
                lines = [(name, value) for name, value in answer.headers.multi_items() if name not in _OWN]
                answers.append(((method, path, headers), answer.status_code, lines, answer.content))
    return answers


async def test_every_answer_is_that_of_the_whole_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = await _answers(url)
    taken = []
    monkeypatch.setattr(mcp_path, "_is_plain", lambda scope: bool(taken.append(1)))
    whole = await _answers(url)
    assert len(taken) == len(whole)
    for one, other in zip(straight, whole, strict=True):
        assert one == other
    assert {status for _, status, _, _ in straight} >= {200, 400, 405, 415}


@pytest.mark.parametrize("path", ["/mcp%2F", "/%6dcp", "/mcp/", "/mcp%0A", "//mcp", "/mcp;x"])
async def test_what_is_written_otherwise_is_routed_as_ever(
    url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        answers = []
        for is_plain in (mcp_path._is_plain, lambda scope: False):
            monkeypatch.setattr(mcp_path, "_is_plain", is_plain)
            answer = await client.post(path, headers=_USUAL, content=_BODIES[0])
            lines = [(name, value) for name, value in answer.headers.multi_items() if name not in _OWN]
            answers.append((answer.status_code, lines, answer.content))
    assert answers[0] == answers[1]
