"""Which calls of an agent are on the list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from cubicle.agents.upstream_client import UpstreamClient
from cubicle.agents.upstreams import UpstreamFailed, apis, is_plain_path
from cubicle.settings import Settings

KEYS = {"anthropic_api_key": "a", "openai_api_key": "o", "gemini_api_key": "g"}


@pytest.mark.parametrize(
    ("api", "call"),
    [
        ("anthropic", "POST /v1/messages"),
        ("anthropic", "POST /v1/messages/count_tokens"),
        ("anthropic", "GET /v1/models"),
        ("anthropic", "GET /v1/models/claude-3.5:x@2026"),
        ("openai", "POST /responses"),
        ("openai", "POST /responses/compact"),
        ("openai", "GET /models"),
        ("gemini", "POST /v1beta/models/gemini-2.5-pro:streamGenerateContent"),
        ("gemini", "POST /v1/models/gemini-2.5-pro:countTokens"),
    ],
)
def test_what_agents_call_is_on_the_list(api: str, call: str) -> None:
    method, path = call.split()
    assert apis(Settings(_env_file=None, **KEYS))[api].allows(method, path)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize(
    "name", [".", "..", "...", ".x", "%2e", "%2e%2e", "%252e", "a%2fb", "a\\b", "a;b", "", "a\n", "é"]
)
def test_no_segment_needs_to_be_interpreted(name: str) -> None:
    assert not is_plain_path(f"/v1/models/{name}/x")
    assert not apis(Settings(_env_file=None, **KEYS))["anthropic"].allows("GET", f"/v1/models/{name}")  # type: ignore[arg-type, call-arg]


def test_a_long_path_is_looked_at_once() -> None:
    assert is_plain_path("/a" * 30_000)
    assert not is_plain_path("/a" * 30_000 + "//")


async def test_calls_that_take_their_time_keep_no_other_sandbox_from_its_own() -> None:
    """A sandbox has 64 calls under way at most; five of them have more than all did before."""
    asked, done = asyncio.Semaphore(0), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.release()
        await done.wait()
        writer.close()

    async def call(url: str) -> None:
        with suppress(UpstreamFailed):
            async with client.stream("GET", url, [], no_body()):
                pass

    async def no_body() -> AsyncIterator[bytes]:
        return
        yield b""

    client = UpstreamClient()
    async with await asyncio.start_server(hold, "127.0.0.1", 0, backlog=1000) as server, asyncio.TaskGroup() as group:
        url = "http://127.0.0.1:{1}/".format(*server.sockets[0].getsockname())
        for _ in range(5 * 64):
            group.create_task(call(url))
        try:
            async with asyncio.timeout(30):
                for _ in range(5 * 64):
                    await asked.acquire()
        finally:
            done.set()
    await client.close()
