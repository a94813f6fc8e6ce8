"""The browser belongs to the sandbox, and so does every word it says: the live view stands whatever that is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.browser import ground
from tests.browser.hostile_browser import nonsense_in
from tests.browser.watcher import Watcher
from tests.conftest import IN_A_HURRY

ROUNDS, MESSAGES, SECONDS = (60, 3000, 20.0) if os.environ.get("CUBICLE_LONG") else (3, 100, 8.0)
if IN_A_HURRY:
    ROUNDS, MESSAGES = 1, 30


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ground.Service]:
    async with ground.serving(ground.memory_driver(tmp_path), tmp_path) as running:
        yield running


@pytest.mark.timeout(600 + ROUNDS * SECONDS)
async def test_a_browser_that_talks_nonsense_harms_nobody(
    service: ground.Service, caplog: pytest.LogCaptureFixture
) -> None:
    heard = 0
    for seed in range(ROUNDS):
        chat = f"hostile{seed}"
        async with service.machine(chat) as machine, nonsense_in(machine, seed):
            assert await _runs(service, chat)
            heard += await _watch(service, chat)
    assert heard
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR and "cubicle" in record.name]
    assert not faults, faults[0].exc_text
    async with service.machine("neighbour") as machine:
        ended, said = await machine.output("echo on", timeout=60)
        assert (ended.status, said) == (0, b"on\n")


async def _runs(service: ground.Service, chat: str) -> bool:
    async with httpx.AsyncClient(base_url=service.base, timeout=60, trust_env=False, verify=False) as http:
        return bool((await http.get(f"/browser/{chat}/status")).json()["running"])


async def _join(address: str) -> Watcher:
    """A connection that is being opened when the time is over is closed: the library would leave it."""
    joining = asyncio.create_task(Watcher.at(address))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await (await joining).leave()
        raise


async def _watch(service: ground.Service, chat: str) -> int:
    """Watch and drive for a while, joining again whenever the view ends; how much was heard."""
    heard = 0
    with contextlib.suppress(TimeoutError):  # nonsense may also leave nothing to be told
        async with asyncio.timeout(SECONDS) as limit:
            while heard < MESSAGES:
                with contextlib.suppress(ConnectionClosed):
                    watcher = await _join(f"{service.ws}/browser/{chat}/live")
                    try:
                        await watcher.say("control", action="take", name="Ann")
                        for x in range(5):
                            await watcher.click(x, x)
                            await watcher.say("nav", action="back")
                        while heard < MESSAGES:
                            await watcher.hear()
                            heard += 1
                            if heard == 1 and IN_A_HURRY:
                                limit.reschedule(asyncio.get_running_loop().time() + 2)
                    finally:
                        await watcher.leave()
    return heard
