"""A hundred chats that wait do so side by side; CUBICLE_LONG=1 has them wait for longer."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.support.process import ServiceProcess

CHATS = 100
SLEEP = 5 if os.environ.get("CUBICLE_LONG") else 2


@pytest.mark.oci
@pytest.mark.serial
@pytest.mark.timeout(600)
async def test_a_hundred_sleeps_take_as_long_as_one(service: ServiceProcess) -> None:
    few = asyncio.Semaphore(8)

    async def up(chat: str) -> None:
        async with few:
            assert await service.bash(chat, "true") == (False, "(no output)")

    chats = [f"sleeper-{number}" for number in range(CHATS)]
    await asyncio.gather(*map(up, chats))
    plain = await _together(service, chats, "true")
    took = await _together(service, chats, f"sleep {SLEEP}")
    plain = max(plain, await _together(service, chats, "true"))
    # What a hundred calls at once cost on this machine comes on top; waiting one after the other would be a hundred times one.
    assert SLEEP <= took < 2 * SLEEP + 3 * plain


async def _together(service: ServiceProcess, chats: list[str], command: str) -> float:
    began = time.monotonic()
    answers = await asyncio.gather(*(service.bash(chat, command) for chat in chats))
    assert answers == [(False, "(no output)")] * len(chats)
    return time.monotonic() - began
