"""Whom a request is charged to, from its first step on."""

from __future__ import annotations

import asyncio
import time

import pytest
from starlette.types import Receive, Scope, Send

from cubicle.core.keys import KeyRing
from cubicle.fairness.fair_queue import FairQueue, LoopShare, metered
from cubicle.http_api.fair_share import FairShare, charge_to

pytestmark = pytest.mark.anyio


def keep_busy(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


async def test_a_tenant_does_not_work_in_the_turns_of_strangers() -> None:
    """A caller with a link is a stranger until it is read: what follows is not done before what others have waited for."""
    queue, done = FairQueue(), list[str]()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await charge_to(scope, "flood", "chat")
        keep_busy(0.002)
        done.append("flood")

    async def other() -> None:
        for _ in range(20):
            keep_busy(0.002)
            done.append("other")
            await asyncio.sleep(0)

    share = FairShare(application, queue, KeyRing.parse("0123456789abcdef"))

    async def visit() -> None:
        scope = {"type": "http", "path": "/files/a/", "headers": [], "client": ("127.0.0.2", 1)}
        await share(scope, None, None)  # type: ignore[arg-type]

    async def call() -> None:
        await metered(other(), queue, LoopShare("other"))

    await asyncio.gather(*(visit() for _ in range(200)), call())
    assert len(done) - done[::-1].index("other") < 60, "the other tenant waited for the flood"
