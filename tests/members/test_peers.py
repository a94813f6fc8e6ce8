"""What members tell each other, and what becomes of a member that tells something else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from cubicle.core.chat import Chat
from cubicle.http_api import peers
from cubicle.http_api.peers import Peers, told
from cubicle.members.records import NoRecords
from cubicle.sandbox.driver import State
from cubicle.sandbox.slot import Overview

SEEN = Overview(Chat("one"), Chat("one").digest, "box", State.RUNNING, "", 1, 2.0, 3.0)


class _Peers(Peers):
    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self._seen = {}
        self.answers = answers
        self.rounds = asyncio.Semaphore(0)

    async def ask(self, target: bytes) -> dict[str, bytes]:
        self.rounds.release()
        if not self.answers:
            raise NoRecords("The API server does not answer.")
        return dict(self.answers)


async def test_a_member_of_another_version_hides_no_other_members_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one after the other is upgraded."""
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.0)
    right = await told(lambda: [SEEN])
    more = json.dumps([[*row, "more"] for row in json.loads(right)]).encode()
    odd = right.replace(b"running", b"resting")
    asking = _Peers({"1-a": more, "2-b": right, "3-c": odd, "4-d": b"\xff", "5-e": b"[[]]"})
    async with asyncio.timeout(10), asking.followed():
        for _ in range(2):  # the second question comes when the first answer is read
            await asking.rounds.acquire()
        assert list(asking.sandboxes()) == [SEEN]
