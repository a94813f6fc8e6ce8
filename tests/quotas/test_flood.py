"""A flood of one tenant, held by its quotas, leaves another tenant its warm calls.

Service, flood and quiet tenant are processes of their own on one machine. What is judged is a call's time without that
for which the kernel had no processor for it (tests/attacks/harness.py says why); the time by the clock is printed. Of
fewer than 200 calls a 99th percentile says nothing but the slowest, so both measurements go on until there are as many.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.attacks.harness import ATTACKER_KEY, Ground, Measured, ground, percentile
from tests.support.process import free_port

MAX_SANDBOXES = 4
MIN_CALLS = 200
METRICS = {"Authorization": "Bearer the-token-of-the-metrics"}
QUOTAS = {
    "TENANT_MAX_CALLS": "16",
    "TENANT_MAX_SANDBOXES": str(MAX_SANDBOXES),
    "START_QUEUE_SECONDS": "5",
    "SHED_MEMORY_MB": "0",
    "METRICS_TOKEN": METRICS["Authorization"].split()[1],
}


@asynccontextmanager
async def flood(url: str, chats: int, uploads: int) -> AsyncIterator[None]:
    """From another process; the block begins when as many of its sandboxes are up as may be."""
    program = Path(__file__).with_name("flooding.py")
    words = (sys.executable, str(program), url, ATTACKER_KEY, str(chats), str(uploads))
    process = await asyncio.create_subprocess_exec(*words)
    try:
        async with asyncio.timeout(120):
            while f'cubicle_sandboxes{{state="running"}} {MAX_SANDBOXES + 1}.0' not in await metrics(url):
                await asyncio.sleep(0.2)
        yield
    finally:
        process.kill()
        await process.wait()


async def metrics(url: str) -> str:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:
        return (await client.get("/metrics", headers=METRICS)).text


async def measured(place: Ground, seconds: float) -> Measured:
    found, ends = await place.idle(seconds), time.monotonic() + 120
    while len(found.bash) < MIN_CALLS and time.monotonic() < ends:
        found += await place.idle(seconds)
    return found


async def flooded(folder: Path, seconds: float, chats: int, uploads: int) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with ground(folder, seconds, options=QUOTAS, port=port) as place:
        alone = await measured(place, min(seconds, 10))
        async with flood(url, chats, uploads):
            beside = await measured(place, seconds)
            shown = await metrics(url)
    print(alone.row("alone"))
    print(beside.row("beside the flood"))
    assert "cubicle_quota_refusals_total" in shown
    assert not any(name in shown for name in ("flood-", "attacker", "victim"))
    assert not beside.failed
    slow = f"{alone.p99 * 1000:.0f} ms alone, {beside.p99 * 1000:.0f} beside ({percentile(beside.wall) * 1000:.0f} by the clock)"
    assert beside.p99 < 5 * alone.p99, slow


@pytest.mark.serial
@pytest.mark.timeout(600)
async def test_a_flood_of_one_tenant_leaves_another_its_calls(tmp_path: Path) -> None:
    await flooded(tmp_path, 5, 40, 16)


@pytest.mark.serial
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_flood_of_200_chats_and_64_uploads_for_a_minute_leaves_another_its_calls(tmp_path: Path) -> None:
    await flooded(tmp_path, 60, 200, 64)
