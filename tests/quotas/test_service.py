"""Quotas of a whole service: what a tool and an HTTP client are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cubicle import settings
from cubicle.app import running
from cubicle.drivers.factory import make_driver
from tests.support.emptying import empty
from tests.support.service import ACCEPT, messages, serve


@dataclass
class Site:
    url: str
    client: httpx.AsyncClient
    calls: int = field(default=0)

    async def call(
        self, command: str, *, key: str = "acme-key", chat: str = "a", user: str = "", once: str = ""
    ) -> dict[str, Any]:
        headers = {"Accept": ACCEPT, "X-Chat-Id": chat, "Authorization": f"Bearer {key}"}
        headers |= {"X-User-Email": user} if user else {}
        headers |= {"Idempotency-Key": once} if once else {}
        params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = messages(await self.client.post("/mcp", json=body, headers=headers))[-1]
        result: dict[str, Any] = answer["result"]
        return result

    async def upload(self, key: str = "acme-key", chat: str = "a") -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return await self.client.post(f"/api/uploads/{chat}/x.txt", content=b"x" * 1000, headers=headers)

    async def metrics(self) -> str:
        return (await self.client.get("/metrics", headers={"Authorization": "Bearer operator-key"})).text


@asynccontextmanager
async def site_of(folder: Path, **chosen: Any) -> AsyncIterator[Site]:
    folder.mkdir(exist_ok=True)
    (folder / "keys.json").write_text(json.dumps({"acme-key": "acme", "other-key": "other"}))
    found = settings.load(
        driver="memory",
        data_dir=folder / "data",
        pool_size=0,
        mcp_api_key="operator-key",
        api_keys_file=folder / "keys.json",
        shed_memory_mb=0,
        **chosen,
    )
    limits = httpx.Limits(max_connections=400)
    try:
        async with (
            running(found) as app,
            serve(app) as url,
            httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False, limits=limits) as client,
        ):
            yield Site(url, client)
    finally:
        await empty(make_driver(found))


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


async def test_over_a_rate_a_tool_says_which_limit_and_http_answers_429(tmp_path: Path) -> None:
    async with site_of(tmp_path, tenant_calls_per_minute=2) as site:
        assert not (await site.call("true"))["isError"]
        assert (await site.upload()).status_code == 201
        refused = await site.call("touch /tmp/ran")
        assert refused["isError"]
        assert "TENANT_CALLS_PER_MINUTE" in text(refused)
        assert "Try again in" in text(refused)
        answer = await site.upload()
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert answer.headers["Content-Type"] == "application/problem+json"
        looked = await site.client.get("/files/a/outputs/", headers={"Authorization": "Bearer acme-key"})
        assert looked.status_code == 200
        assert not (await site.call("true", key="other-key"))["isError"]
        assert 'cubicle_quota_refusals_total{limit="calls_per_minute",scope="tenant"} 2.0' in await site.metrics()


async def test_calls_at_once_of_a_user_are_limited(tmp_path: Path) -> None:
    async with site_of(tmp_path, user_max_calls=1) as site:
        first = asyncio.ensure_future(site.call("sleep 300", user="ann"))
        async with asyncio.timeout(60):
            while 'cubicle_tool_calls_running{tool="bash_tool"} 1.0' not in await site.metrics():
                await asyncio.sleep(0.05)
        refused = await site.call("true", user="ann", chat="b")
        assert "USER_MAX_CALLS" in text(refused)
        assert not (await site.call("true", user="bob"))["isError"]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_call_that_was_refused_is_done_when_it_comes_again_with_its_key(tmp_path: Path) -> None:
    async with site_of(tmp_path, tenant_max_calls=1) as site:
        first = asyncio.ensure_future(site.call("sleep 300", chat="b"))
        async with asyncio.timeout(60):
            while 'cubicle_tool_calls_running{tool="bash_tool"} 1.0' not in await site.metrics():
                await asyncio.sleep(0.05)
        assert "TENANT_MAX_CALLS" in text(await site.call("echo ran >> f; cat f", once="k"))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(60):
            while (done := await site.call("echo ran >> f; cat f", once="k"))["isError"]:
                await asyncio.sleep(0.05)
        assert text(done) == text(await site.call("echo ran >> f; cat f", once="k")) == "ran\n"


async def test_a_start_over_the_limit_waits_for_another_to_stop(tmp_path: Path) -> None:
    async with site_of(tmp_path, tenant_max_sandboxes=1) as site:
        assert not (await site.call("true", chat="one"))["isError"]
        second = asyncio.ensure_future(site.call("echo second", chat="two"))
        async with asyncio.timeout(60):
            while "cubicle_start_queue_waiting 1.0" not in await site.metrics():
                await asyncio.sleep(0.05)
        stopped = await site.client.post("/api/sandboxes/one/stop", headers={"Authorization": "Bearer acme-key"})
        assert stopped.status_code == 200
        assert text(await second) == "second\n"


async def test_a_start_that_finds_no_room_in_time_is_refused(tmp_path: Path) -> None:
    async with site_of(tmp_path, tenant_max_sandboxes=1, start_queue_seconds=0.1) as site:
        assert not (await site.call("true", chat="one"))["isError"]
        refused = await site.call("true", chat="two")
        assert refused["isError"]
        assert "TENANT_MAX_SANDBOXES" in text(refused)
        answer = await site.upload(chat="two")
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
        assert not (await site.call("true", chat="one"))["isError"]
        assert not (await site.call("true", chat="one", key="other-key"))["isError"]


async def test_who_stops_a_sandbox_before_each_look_saves_no_cpu_seconds(tmp_path: Path) -> None:
    key = {"Authorization": "Bearer acme-key"}
    async with site_of(tmp_path, tenant_cpu_seconds_per_day=1) as site:
        assert not (await site.call("timeout 2 sh -c 'while :; do :; done'; true"))["isError"]
        assert (await site.client.post("/api/sandboxes/a/stop", headers=key)).status_code == 200
        assert "TENANT_CPU_SECONDS_PER_DAY" in text(await site.call("true"))
        woken = await site.client.get("/files/a/outputs/?wake=1", headers=key)
        assert (woken.status_code, "Retry-After" in woken.headers) == (429, True)
        assert (await site.client.get("/files/a/outputs/", headers=key)).status_code == 409


async def test_cpu_seconds_of_a_day_refuse_the_next_call_and_stop_nothing(tmp_path: Path) -> None:
    """Looks at the sandbox, as the service does every 15 seconds."""
    async with site_of(tmp_path, tenant_cpu_seconds_per_day=1) as site:
        assert not (await site.call("timeout 3 sh -c 'while :; do :; done'; true"))["isError"]
        async with asyncio.timeout(90):
            while not (refused := await site.call("true"))["isError"]:
                await asyncio.sleep(0.5)
        assert "TENANT_CPU_SECONDS_PER_DAY" in text(refused)
        assert "hours" in text(refused)
        rows = await site.client.get("/api/sandboxes", headers={"Authorization": "Bearer acme-key"})
        assert [row["state"] for row in rows.json()["sandboxes"]] == ["running"]
        assert not (await site.call("true", key="other-key"))["isError"]
    async with site_of(tmp_path, tenant_cpu_seconds_per_day=1) as site:
        assert (await site.call("true"))["isError"]
