"""What agents have spent is remembered for as long as their chat is there, whatever the date says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cubicle.chat.agent_purses import Limits, OutOfBudget, Purses
from cubicle.rules.chats import Chat

HERE, GONE = Chat("here"), Chat("gone")
DAY = 86400.0


@pytest.mark.parametrize(
    "stamp", [0.0, time.time() - 400 * DAY, time.time() + 400 * DAY], ids=["1970", "past", "future"]
)
async def test_the_spending_of_a_chat_that_exists_is_kept_however_old_it_seems(tmp_path: Path, stamp: float) -> None:
    limits = Limits(requests=1)
    before = Purses(tmp_path, limits)
    before.open()
    for chat in (HERE, GONE):
        await before.begin(chat)
        await before.save(chat)
        os.utime(tmp_path / chat.digest, (stamp, stamp))
    await before.forget(GONE)
    after = Purses(tmp_path, limits)
    after.open()
    with pytest.raises(OutOfBudget):
        await after.begin(HERE)
    assert not (tmp_path / GONE.digest).exists()
