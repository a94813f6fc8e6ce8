"""One of two workers on the embedded driver is killed: the other goes on with its chats."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.members.test_endings import connected_to
from tests.support.process import ServiceProcess
from tests.survival.conftest import serving

_LIMIT = 20.0
CHATS = 3


async def until_answered(service: ServiceProcess, chat: str, command: str) -> str:
    """As a client does that tries again when it was told to."""
    while True:
        with suppress(httpx.TransportError, AssertionError):
            failed, said = await service.bash(chat, command)
            assert not failed
            return said
        await asyncio.sleep(0.1)


@pytest.mark.oci
@pytest.mark.timeout(600)
async def test_the_other_worker_goes_on_with_what_runs_and_with_the_files(tmp_path: Path, image: str) -> None:
    async with serving(tmp_path, image, {"WORKERS": "2"}) as service:
        unused, clients = service.client, await connected_to(service, 2)
        (killed, first), (_, second) = clients.items()
        service.client = first
        chats = [f"chat-{number}" for number in range(CHATS)]
        for chat in chats:
            await until_answered(service, chat, f"echo {chat} > ~/kept; (sleep 3165 &) >/dev/null 2>&1")
        os.kill(killed, signal.SIGKILL)
        began = time.monotonic()
        service.client = second
        for chat in chats:
            said = await until_answered(service, chat, "cat ~/kept; pgrep -cfx 'sleep 3165'")
            assert said == f"{chat}\n1\n"
        assert time.monotonic() - began < _LIMIT
        for client in (unused, first, second):
            await client.aclose()
