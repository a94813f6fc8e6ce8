"""Many chats on a real API server with fake kubelets, in short: bench/scale.py has ten thousand of them."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bench import scale
from bench.scale_terms import Terms
from tests.drivers.kubernetes.test_claims import blank, claim_at_once, resize_pool

pytestmark = [pytest.mark.kubernetes, pytest.mark.serial, pytest.mark.timeout(600)]
CHATS = 300
CLAIMING, SERVICES, ROUNDS = 20, 3, 50


@pytest.mark.long
async def test_hundreds_of_chats_are_listed_found_claimed_and_swept(tmp_path: Path) -> None:
    word = secrets.token_hex(3)
    terms = Terms(f"scale-{word}", f"fake-{word}", str(tmp_path), CHATS, blank=40, rate=5, seconds=10)
    found = await scale.run(terms)
    replica = found.replica
    assert replica["failed"] == []
    assert len(replica["claims"]) + len(replica["cold"]) == 50
    assert replica["listed"] == CHATS
    assert replica["swept"] == {}, "nothing of a chat is swept"
    assert replica["peak_mb"] < scale.REPLICA_MB / 2
    assert found.claim_p99 < 10 * scale.CLAIM_P99_MS, "the machine is shared: the bar itself is the benchmark's"


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_every_chat_that_many_services_claim_at_once_has_one_pod(tmp_path: Path) -> None:
    """Who wins is up to the API server, so no container has to run: fifty rounds take minutes."""
    word = secrets.token_hex(3)
    pods = CLAIMING * (ROUNDS + 2)
    terms = Terms(f"scale-{word}", f"fake-{word}", str(tmp_path), pods, blank=0, rate=0, seconds=0)
    async with scale.cluster(terms, clean=True), AsyncExitStack() as stack:
        services = [terms.driver(pool_size=1) for _ in range(SERVICES)]
        for service in services:
            await service.open()
            stack.push_async_callback(service.close)
        await resize_pool(services[0], CLAIMING + 2)
        for number in range(ROUNDS):
            for service in services:
                await blank(service, CLAIMING + 2)
            await claim_at_once(services, [f"{number:016x}{chat:016x}" for chat in range(CLAIMING)])
            print(f"round {number + 1}: {CLAIMING} chats, {CLAIMING} winners, {CLAIMING} pods")
