"""The limits of a key: what `cubicle keys add` wrote down holds, beside those of the tenant, and as it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from cubicle import settings
from cubicle.app import running
from cubicle.chat.key_file import change_file
from cubicle.core.api_keys import ApiKey, KeyFile, KeyLimits
from cubicle.drivers.factory import make_driver
from tests.quotas.test_service import Site, text
from tests.support.emptying import empty
from tests.support.service import serve


@asynccontextmanager
async def site_of(folder: Path, limits: KeyLimits, **chosen: Any) -> AsyncIterator[Site]:
    file = KeyFile.empty().with_key("small-key", ApiKey("small", "acme", limits=limits))
    (folder / "keys.json").write_text(file.with_key("large-key", ApiKey("large", "acme")).text())
    found = settings.load(
        driver="memory", data_dir=folder / "data", pool_size=0, mcp_api_key="operator-key",
        api_keys_file=folder / "keys.json", shed_memory_mb=0, **chosen,
    )  # fmt: skip
    try:
        async with (
            running(found) as app,
            serve(app) as url,
            httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
        ):
            yield Site(url, client)
    finally:
        await empty(make_driver(found))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.05)


async def test_calls_per_minute_of_a_key_are_its_own(tmp_path: Path) -> None:
    async with site_of(tmp_path, KeyLimits(calls_per_minute=2)) as site:
        assert not (await site.call("true", key="small-key"))["isError"]
        assert (await site.upload("small-key")).status_code == 201
        refused = await site.call("true", key="small-key")
        assert refused["isError"]
        assert "This key has made the 2 calls" in text(refused)
        assert (await site.upload("small-key")).status_code == 429
        await site.client.post("/login", data={"key": "small-key"})
        by_cookie = await site.client.post("/api/uploads/a/x.txt", content=b"x")
        site.client.cookies.clear()
        assert by_cookie.status_code == 429
        assert not (await site.call("true", key="large-key"))["isError"]
        assert 'cubicle_quota_refusals_total{limit="calls_per_minute",scope="key"} 3.0' in await site.metrics()


async def test_calls_at_once_of_a_key_are_limited_whoever_its_users_are(tmp_path: Path) -> None:
    async with site_of(tmp_path, KeyLimits(calls_at_once=1)) as site:
        first = asyncio.ensure_future(site.call("sleep 300", key="small-key", user="ann"))

        async def runs() -> bool:
            return 'cubicle_tool_calls_running{tool="bash_tool"} 1.0' in await site.metrics()

        await until(runs)
        refused = await site.call("true", key="small-key", chat="b", user="bob")
        assert "This key has 1 calls under way" in text(refused)
        assert not (await site.call("true", key="large-key", chat="b"))["isError"]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_sandboxes_of_a_key_wait_for_each_other(tmp_path: Path) -> None:
    async with site_of(tmp_path, KeyLimits(sandboxes=1), start_queue_seconds=0.1) as site:
        assert not (await site.call("true", key="small-key", chat="one"))["isError"]
        refused = await site.call("true", key="small-key", chat="two")
        assert "This key has 1 sandboxes running" in text(refused)
        assert (await site.upload("small-key", chat="two")).status_code == 429
        assert not (await site.call("true", key="large-key", chat="two"))["isError"]


async def test_limits_that_are_changed_hold_without_a_restart(tmp_path: Path) -> None:
    async with site_of(tmp_path, KeyLimits()) as site:
        assert not (await site.call("true", key="small-key"))["isError"]

        def change(file: KeyFile) -> KeyFile:
            return file.with_changed("small", limits=KeyLimits(calls_per_minute=1))

        await asyncio.to_thread(change_file, tmp_path / "keys.json", change)

        async def refused() -> bool:
            return bool((await site.call("true", key="small-key"))["isError"])

        await until(refused)
        assert not (await site.call("true", key="large-key"))["isError"]
