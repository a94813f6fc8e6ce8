"""A member that others may have taken for dead, and that lives: what they took is theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.kubernetes import members
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.cluster import Cluster
from cubicle.drivers.kubernetes.members import LeaseRecords
from cubicle.journal.shared import SharedJournal
from cubicle.machine.errors import SandboxError
from cubicle.members import disk_records
from cubicle.members.disk_records import DiskRecords
from cubicle.members.owners import Owners
from cubicle.members.records import NoRecords, Ownership

CHATS = [Chat(f"chat-{number}") for number in range(3)]


class _Records(DiskRecords):
    """Of which one question may find no answer."""

    failing = ""

    async def owner(self, digest: str) -> Ownership | None:
        if digest == self.failing:
            self.failing = ""
            raise NoRecords("The API server does not answer.")
        return await super().owner(digest)


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await asyncio.to_thread(disk_records.prepare, tmp_path)


@pytest.fixture
async def records(folder: Path) -> AsyncIterator[_Records]:
    made = _Records(folder, 1)
    (await made.open()).close()
    yield made
    await made.close()


@pytest.fixture
async def other(folder: Path) -> AsyncIterator[DiskRecords]:
    made = DiskRecords(folder, 2)
    (await made.open()).close()
    yield made
    await made.close()


async def test_all_that_others_took_is_let_go_though_one_look_failed(records: _Records, other: DiskRecords) -> None:
    owners = Owners(records)
    for chat in CHATS:
        assert await owners.place(chat) is None
        await other.take(chat.digest, await records.owner(chat.digest))
    records.lapsed, records.failing = True, CHATS[1].digest
    with pytest.raises(NoRecords):
        await owners._look_at_own()
    assert records.lapsed  # the next round looks again
    await owners._look_at_own()
    assert owners.owned() == []
    assert not records.lapsed


async def test_a_chat_that_another_took_and_released_since_is_let_go(records: _Records, other: DiskRecords) -> None:
    """Else whoever is asked for it next owns it as well."""
    owners, chat = Owners(records), CHATS[0]
    assert await owners.place(chat) is None
    taken = await other.take(chat.digest, await records.owner(chat.digest))
    await other.release({chat.digest: taken.epoch})
    records.lapsed = True
    await owners._look_at_own()
    assert owners.owned() == []


async def test_a_chat_that_stays_its_own_is_kept(records: _Records) -> None:
    owners, chat = Owners(records), CHATS[0]
    assert await owners.place(chat) is None
    records.lapsed = True
    await owners._look_at_own()
    assert owners.owned() == [chat.digest]


@pytest.mark.parametrize("way", ["asked for", "claimed"])
async def test_a_chat_that_another_took_while_it_was_being_taken_is_not_its_own(
    records: _Records, other: DiskRecords, way: str
) -> None:
    """The look at its own comes while what there is of the chat is still being read."""
    owners, chat = Owners(records), CHATS[0]
    reads, go = asyncio.Event(), asyncio.Event()
    lost: list[str] = []

    async def read(digest: str) -> None:
        reads.set()
        await go.wait()

    owners.read, owners.lost = read, lost.append
    taking = asyncio.ensure_future(owners.place(chat) if way == "asked for" else owners.claim_one(chat.digest))
    await reads.wait()
    await other.take(chat.digest, await records.owner(chat.digest))
    records.lapsed = True
    await owners._look_at_own()
    go.set()
    if way == "asked for":
        with pytest.raises(NoRecords):
            await taking
    else:
        assert not await taking
    assert owners.owned() == []
    assert lost == [chat.digest]


@pytest.mark.parametrize("found", ["another's", "no answer", "what cannot be read"])
async def test_the_journal_of_a_chat_that_was_not_taken_after_all_is_read_again_the_next_time(
    records: _Records, other: DiskRecords, tmp_path: Path, found: str
) -> None:
    """Another may have written it since: to go on from what was read before would give numbers twice."""
    chat = CHATS[0]
    async with (
        SharedJournal(tmp_path / "journals") as mine,
        SharedJournal(tmp_path / "journals") as others,
    ):
        owners = Owners(records)

        async def write() -> None:
            await others.take(chat.digest)
            others.record(chat, "note", {})
            await others.settle(chat)
            await others.give(chat.digest)

        async def read(digest: str) -> None:
            await mine.take(digest)
            if found == "what cannot be read":
                raise OSError("no answer")
            records.lapsed = True
            await owners._look_at_own()
            if found == "another's":
                await other.take(digest, await records.owner(digest))
            else:
                records.failing = digest

        await write()
        owners.read, owners.give = read, mine.give
        with pytest.raises(NoRecords):
            await owners.place(chat)
        await write()
        await mine.take(chat.digest)
        assert mine.record(chat, "note", {}) == 3


def _lease_records() -> LeaseRecords:
    return LeaseRecords(lambda: Cluster("http://nowhere", None, "test"), "small", slot=1, address="127.0.0.1", port=1)


async def test_a_renewal_counts_from_when_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others see it when it is written. Between these two they saw nothing for 17 seconds."""
    now, answer_takes = [1000.0], [0.0]

    class Slow(KubernetesClient):
        async def patch(self, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any] | None:
            now[0] += answer_takes[0]
            return {"metadata": {"resourceVersion": "1"}}

    clock = {"monotonic": lambda: now[0], **{name: getattr(time, name) for name in ("strftime", "gmtime", "time_ns")}}
    monkeypatch.setattr(members, "time", SimpleNamespace(**clock))
    records = _lease_records()
    records._client = Slow(Cluster("http://nowhere", None, "test"))
    try:
        answer_takes[0] = 12.0
        await records._renew()
        records.lapsed = False  # the owners have looked
        now[0] += members.RENEW_SECONDS
        answer_takes[0] = 0.1
        await records._renew()
        assert records.lapsed
        now[0] += members.RENEW_SECONDS
        records.lapsed = False
        await records._renew()
        assert not records.lapsed
    finally:
        await records._client.close()


async def test_a_renewal_without_an_answer_keeps_none_after_it_waiting() -> None:
    """An API server that is lost does not hang up; another one answers on another connection."""
    written, ends = asyncio.Event(), list[str]()

    class Half(KubernetesClient):
        asked = 0

        async def patch(self, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any] | None:
            self.asked += 1
            if self.asked > 1:
                written.set()
                return {"metadata": {"resourceVersion": "1"}}
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("hung up")
            return None

    records = _lease_records()
    records._renew_seconds = 0.01
    records._client = Half(Cluster("http://nowhere", None, "test"))
    records._keeping = asyncio.ensure_future(records._keep())
    try:
        async with asyncio.timeout(10):
            await written.wait()
    finally:
        records._keeping.cancel()
        await asyncio.wait([records._keeping])
        await records._client.close()
    assert ends == ["hung up"]  # with the end of the member: it writes nothing after that


async def test_a_lease_that_was_made_anew_without_an_answer_is_a_lapse_too() -> None:
    class Cut(KubernetesClient):
        async def patch(self, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any] | None:
            return None

        async def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any] | None:
            raise SandboxError("The API server hung up.")

    records = _lease_records()
    records._client = Cut(Cluster("http://nowhere", None, "test"))
    records._keeping = asyncio.ensure_future(asyncio.sleep(0))
    try:
        with pytest.raises(NoRecords):
            await records._renew()
        assert records.lapsed
    finally:
        await records._keeping
        await records._client.close()


async def test_a_chat_of_which_another_is_said_to_have_it_is_looked_at(records: _Records, other: DiskRecords) -> None:
    """By hand a Lease may change though its member never fell silent."""
    owners = Owners(records)
    for chat in CHATS[:2]:
        assert await owners.place(chat) is None
    assert await owners.still_owns(CHATS[0].digest)
    assert not records.lapsed
    await other.take(CHATS[0].digest, await records.owner(CHATS[0].digest))
    assert not await owners.still_owns(CHATS[0].digest)
    assert records.lapsed
    await owners._look_at_own()
    assert owners.owned() == [CHATS[1].digest]
    records.failing = CHATS[1].digest
    assert not await owners.still_owns(CHATS[1].digest)
