"""Many chats on a real API server with fake kubelets, in short: bench/scale.py has ten thousand of them."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from bench import scale
from bench.scale_terms import Terms

pytestmark = [pytest.mark.kubernetes, pytest.mark.serial, pytest.mark.timeout(600)]
CHATS = 300


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
