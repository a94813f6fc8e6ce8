"""What is written down of each chat, and how old that makes it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import SandboxSeen
from cubicle.sandbox.fleet import Fleet
from tests.support.emptying import empty

A = Chat("a")
DAY = 86400.0


@pytest.fixture
def chat_index(tmp_path: Path) -> ChatIndex:
    chat_index = ChatIndex(tmp_path / "chats")
    chat_index.open()
    return chat_index


def rewrite(folder: Path, **fields: object) -> None:
    (folder / "chats" / A.digest).write_text(json.dumps({"tenant": A.tenant, "chat": A.id} | fields))


def test_a_chat_is_as_old_as_its_first_call(chat_index: ChatIndex) -> None:
    before = time.time()
    since = chat_index.enter(A)
    assert since is not None
    assert before <= since <= time.time()
    assert chat_index.enter(A) == since
    assert chat_index.read()[A.digest].since == since
    chat_index.remove(A.digest)
    later = chat_index.enter(A)
    assert later is not None
    assert later >= since


@pytest.mark.parametrize("fields", [{}, {"since": None}, {"since": "yesterday"}])
def test_a_record_that_does_not_say_since_when_is_read(
    chat_index: ChatIndex, tmp_path: Path, fields: dict[str, object]
) -> None:
    rewrite(tmp_path, **fields)
    record = chat_index.read()[A.digest]
    assert (record.chat, record.since) == (A, None)
    assert chat_index.enter(A) is None


async def test_a_chat_that_gets_a_blank_sandbox_is_not_as_old_as_that(chat_index: ChatIndex, tmp_path: Path) -> None:
    driver = MemoryDriver(tmp_path)
    try:
        async with Fleet(driver, chat_index, pool_size=1) as fleet:
            async with asyncio.timeout(100):
                await fleet.pool.filled()
            (blank,) = await driver.list()
            before = time.time()
            async with fleet.lease(A):
                overview = fleet.state(A)
            assert overview is not None
            assert overview.name == blank.name
            assert overview.age_seconds is not None
            assert overview.age_seconds <= time.time() - before
            async with asyncio.timeout(100):
                await fleet.pool.filled()  # what is being made when the fleet ends would be left to the next
    finally:
        await empty(MemoryDriver(tmp_path))


@pytest.mark.parametrize(("fields", "days"), [({"since": time.time() - 3 * DAY}, 3), ({}, None)], ids=["new", "old"])
async def test_the_age_outlives_the_service(
    chat_index: ChatIndex, tmp_path: Path, fields: dict[str, object], days: int | None
) -> None:
    try:
        async with Fleet(MemoryDriver(tmp_path), chat_index, pool_size=0) as fleet, fleet.lease(A):
            pass
        rewrite(tmp_path, **fields)
        async with Fleet(MemoryDriver(tmp_path), chat_index, pool_size=0) as fleet:
            overview = fleet.state(A)
            assert overview is not None
            assert overview.chat == A
            age = overview.age_seconds
            assert (None if age is None else round(age / DAY)) == days
    finally:
        await empty(MemoryDriver(tmp_path))


class Forgetful(MemoryDriver):
    """Lists nothing, as an engine may right after a start."""

    async def list(self) -> list[SandboxSeen]:
        return []


async def test_a_list_of_sandboxes_that_is_short_for_a_moment_forgets_no_chat(
    chat_index: ChatIndex, tmp_path: Path
) -> None:
    try:
        async with Fleet(MemoryDriver(tmp_path), chat_index, pool_size=0) as fleet, fleet.lease(A) as machine:
            await machine.output("echo kept > kept", timeout=60)
        async with Fleet(Forgetful(tmp_path), chat_index, pool_size=0) as fleet:
            assert fleet.state(A) is None
        async with Fleet(MemoryDriver(tmp_path), chat_index, pool_size=0) as fleet:
            overview = fleet.state(A)
            assert overview is not None
            assert overview.chat == A
            assert overview.age_seconds is not None
            async with fleet.lease(A) as machine:
                assert (await machine.output("cat kept", timeout=60))[1] == b"kept\n"
    finally:
        await empty(MemoryDriver(tmp_path))
