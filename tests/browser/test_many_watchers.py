"""Fifty people with the workspace of one chat open, and a page that stands still: what that costs the service.

Their questions are spread evenly, so a third of a round of them costs what a whole one does; CUBICLE_LONG=1 takes that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.browser.watcher import Watcher
from tests.browser.whole import KEY, Whole

pytestmark = [
    pytest.mark.anyio, pytest.mark.real, pytest.mark.oci, pytest.mark.serial, pytest.mark.timeout(300),
    pytest.mark.usefixtures("chromium"),
]  # fmt: skip

LONG = bool(os.environ.get("CUBICLE_LONG"))
WATCHERS = 50
SECONDS = 15.0 if LONG else 5.0
HEADERS = {"Authorization": f"Bearer {KEY}"}
POLLED = ("/browser/crowd/status", "/terminal/crowd/status", "/terminal/crowd/processes")
POLL_EVERY = 15.0


def used(pid: int) -> float:
    """Seconds of processor that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def attends(whole: Whole, stack: AsyncExitStack, group: asyncio.TaskGroup, number: int) -> Watcher:
    """What one page of the workspace has open, and asks for."""
    address = whole.base.replace("http", "ws", 1)
    socket = await connect(f"{address}/browser/crowd/live", compression=None, max_size=None, additional_headers=HEADERS)
    watcher = Watcher(socket)
    stack.push_async_callback(watcher.leave)
    await watcher.say("name", name=f"Watcher {number}")
    await watcher.picture()
    client = await stack.enter_async_context(httpx.AsyncClient(base_url=whole.base, headers=HEADERS, timeout=None))
    for path in ("events", "ports/events"):
        stream = await stack.enter_async_context(client.stream("GET", f"/api/chats/crowd/{path}"))
        assert stream.status_code == 200
        group.create_task(_read(stream.aiter_bytes()))
    group.create_task(_poll(client, number * POLL_EVERY / WATCHERS))
    group.create_task(_hear(watcher))
    return watcher


async def _read(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


async def _poll(client: httpx.AsyncClient, after: float) -> None:
    await asyncio.sleep(after)
    while True:
        for path in POLLED:
            assert (await client.get(path)).status_code == 200
        await asyncio.sleep(POLL_EVERY)


async def _hear(watcher: Watcher) -> None:
    while True:
        await watcher.hear()


async def test_fifty_watchers_of_an_idle_page_cost_less_than_a_third_of_a_core(whole: Whole) -> None:
    await whole.bash("crowd", "cubicle-browser")
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        watchers = [await attends(whole, stack, group, number) for number in range(WATCHERS)]
        await asyncio.sleep(5 if LONG else 2)  # the last ones came just now
        before = used(whole.pid)
        await asyncio.sleep(SECONDS)  # what is measured is what a time costs
        share = (used(whole.pid) - before) / SECONDS
        told = watchers[0].latest("watchers")
        for task in asyncio.all_tasks():
            if task.get_coro().__name__ in ("_read", "_poll", "_hear"):  # type: ignore[union-attr]
                task.cancel()
    print(f"{WATCHERS} watchers: {share:.1%} of a core")
    assert told is not None
    assert len(told["watchers"]) == WATCHERS
    assert share < 0.3
