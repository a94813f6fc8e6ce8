"""What a chat used of its egress allowance outlives the service, and goes with the chat."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.egress import quota
from cubicle.egress.quota import Moment, Quotas

CHAT = Chat("used", "acme")
DAY = 86400.0
START = Moment("boot-1", 1000.0, 1_800_000_000.0)


def later(seconds: float, *, boot: str = "boot-1", jump: float = 0.0) -> Moment:
    """The moment so long after the start; the wall clock has jumped by so much."""
    uptime = START.uptime + seconds if boot == START.boot else 10.0
    return Moment(boot, uptime, START.wall + seconds + jump)


@asynccontextmanager
async def opened(folder: Path, now: Moment = START) -> AsyncIterator[Quotas]:
    kept = Quotas(folder, now=lambda: now)
    await kept.open()
    try:
        yield kept
    finally:
        await kept.close()


async def used(folder: Path, now: Moment) -> int:
    async with opened(folder, now) as kept:
        return (await kept.of(CHAT)).bytes


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (later(60), 70),
        (later(DAY - 1), 70),
        (later(DAY + 1), 0),
        (later(60, jump=31 * DAY), 70),  # the wall clock jumps; that of the boot does not
        (later(60, jump=-31 * DAY), 70),
        (later(DAY + 1, jump=-31 * DAY), 0),
        (later(60, boot="boot-2"), 70),
        (later(DAY + 1, boot="boot-2"), 0),
        (later(60, boot="boot-2", jump=-31 * DAY), 70),  # a clock that was set back: at most a day longer
    ],
)
async def test_a_restart_forgives_nothing_before_the_day_is_over(tmp_path: Path, now: Moment, expected: int) -> None:
    async with opened(tmp_path) as kept:
        (await kept.of(CHAT)).add(70, 100)
    assert await used(tmp_path, now) == expected


async def test_a_killed_service_has_written_what_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "SAVE_SECONDS", 0.01)
    killed = Quotas(tmp_path, now=lambda: START)
    await killed.open()
    (await killed.of(CHAT)).add(70, 100)
    path = tmp_path / CHAT.digest
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.01)
    assert killed._saving is not None
    killed._saving.cancel()  # and no more is done, as after kill -9
    assert await used(tmp_path, later(1)) == 70
    assert not [entry for entry in tmp_path.iterdir() if entry.name != CHAT.digest]


async def test_the_same_allowance_is_for_all_who_ask(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        assert await kept.of(CHAT) is await kept.of(CHAT)
        assert await kept.of(CHAT) is not await kept.of(Chat("used", "other"))


GOOD = {"version": 1, "bytes": 70, "elapsed": 5.0, "boot": "boot-1", "uptime": 1.0, "time": 1.0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"null",
        b"[]",
        b"[" * 2000,
        json.dumps(GOOD | {"bytes": -1}).encode(),
        json.dumps(GOOD | {"bytes": "70"}).encode(),
        json.dumps(GOOD | {"bytes": True}).encode(),
        json.dumps(GOOD | {"elapsed": float("nan")}).encode(),
        json.dumps(GOOD | {"elapsed": -1e300}).encode(),
        json.dumps({"bytes": 70}).encode(),
        json.dumps(GOOD | {"more": "x" * 5000}).encode(),
    ],
)
async def test_a_record_that_cannot_be_read_is_set_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / CHAT.digest).write_bytes(content)
    async with opened(tmp_path) as kept:
        allowance = await kept.of(CHAT)
        assert allowance.bytes == 0
        allowance.add(5, 100)
    (aside,) = tmp_path.glob("*.unreadable-*")
    assert aside.read_bytes() == content
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert await used(tmp_path, later(1)) == 5


async def test_a_folder_in_the_place_of_a_record_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / CHAT.digest).mkdir()
    async with opened(tmp_path) as kept:
        (await kept.of(CHAT)).add(5, 100)
    assert await used(tmp_path, later(1)) == 5


async def test_records_of_a_later_version_are_read(tmp_path: Path) -> None:
    record = GOOD | {"version": 2, "uptime": START.uptime, "time": START.wall, "new": [1]}
    (tmp_path / CHAT.digest).write_text(json.dumps(record))
    assert await used(tmp_path, later(1)) == 70


async def test_a_disk_that_takes_nothing_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async with opened(tmp_path) as kept:
        (await kept.of(CHAT)).add(5, 100)
        with monkeypatch.context() as patch:
            patch.setattr(quota.durable, "write", full)  # type: ignore[attr-defined]
            await kept.save()
        assert "No space left on device" in caplog.text
        await kept.save()
        assert (tmp_path / CHAT.digest).exists()


async def test_nothing_is_left_of_a_chat_that_was_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        allowance = await kept.of(CHAT)
        allowance.add(5, 100)
        await kept.save()
        await kept.forget(CHAT)
        allowance.add(5, 100)  # a connection that is still being cut
    assert list(tmp_path.iterdir()) == []


async def test_records_of_days_that_are_over_are_removed_at_the_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as kept:
        (await kept.of(CHAT)).add(5, 100)
    async with opened(tmp_path, replace(later(DAY), uptime=START.uptime + DAY)):
        assert list(tmp_path.iterdir()) == []
