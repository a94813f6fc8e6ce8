"""The records of members, on disk and on a cluster: who owns a chat, and who is there."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.kubernetes import members
from cubicle.drivers.kubernetes.members import LeaseRecords
from cubicle.machine.errors import SandboxError, Unusable
from cubicle.members import disk_records
from cubicle.members.disk_records import DiskRecords
from cubicle.members.hop_keys import HopKeys
from cubicle.members.owners import Owners
from cubicle.members.records import MemberRecords, NoRecords, Ownership
from cubicle.membership import Membership
from tests.drivers.kubernetes import cluster

DIGEST, OTHER = "a" * 32, "b" * 32
_DEAD, _RENEW = 1.0, 0.2
Make = Callable[[int], MemberRecords]


def on_a_cluster(folder: Path) -> Make:
    found = cluster.make_small(folder)()._find_cluster
    return lambda slot: LeaseRecords(
        found, "small", slot=slot, address="127.0.0.1", port=0, dead_seconds=_DEAD, renew_seconds=_RENEW
    )


def on_disk(folder: Path) -> Make:
    made = disk_records.prepare(folder)
    return lambda slot: DiskRecords(made, slot)


@pytest.fixture(params=[on_disk, on_a_cluster], ids=["disk", "cluster"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    made: Make = await asyncio.to_thread(request.param, tmp_path)
    return made


@pytest.fixture
async def member(make: Make) -> AsyncIterator[MemberRecords]:
    records = make(1)
    (await records.open()).close()
    yield records
    await records.close()


async def test_a_chat_that_nobody_had_is_taken_once(make: Make, member: MemberRecords) -> None:
    assert await member.owner(DIGEST) is None
    assert await member.take(DIGEST, None) == Ownership(member.name, 1)
    other = make(2)
    (await other.open()).close()
    try:
        assert await other.owner(DIGEST) == Ownership(member.name, 1)
        assert await other.take(DIGEST, None) == Ownership(member.name, 1)
        assert await other.owned_by(member.name) == [DIGEST]
    finally:
        await other.close()


async def test_a_chat_changes_hands_if_it_is_as_it_was_seen(make: Make, member: MemberRecords) -> None:
    first = await member.take(DIGEST, None)
    other = make(2)
    (await other.open()).close()
    try:
        taken = await other.take(DIGEST, first)
        assert taken == Ownership(other.name, 2)
        assert await member.take(DIGEST, first) == taken
    finally:
        await other.close()


async def test_of_many_who_want_a_chat_one_gets_it(make: Make, member: MemberRecords) -> None:
    others = [make(slot) for slot in range(2, 6)]
    for each in others:
        (await each.open()).close()
    try:
        got = await asyncio.gather(*(each.take(DIGEST, None) for each in [member, *others] * 3))
        assert len({each.holder for each in got}) == 1
        again = await asyncio.gather(*(each.take(DIGEST, got[0]) for each in others), return_exceptions=True)
        assert len({each.holder for each in again if isinstance(each, Ownership)}) == 1
    finally:
        for each in others:
            await each.close()


async def test_what_is_released_is_the_next_ones(make: Make, member: MemberRecords) -> None:
    await member.take(DIGEST, None)
    await member.take(OTHER, None)
    await member.release({DIGEST: 2})  # of another time that it was its own
    assert await member.owner(DIGEST) == Ownership(member.name, 1)
    await member.release({DIGEST: 1})
    other = make(2)
    (await other.open()).close()
    try:
        seen = await other.owner(DIGEST)
        assert seen is None or not await other.is_alive(seen.holder)
        assert (await other.take(DIGEST, seen)).holder == other.name
        await other.release({OTHER: 1})  # it is not the other's
        assert await member.owner(OTHER) == Ownership(member.name, 1)
    finally:
        await other.close()


async def test_a_member_reaches_another_and_knows_when_it_left(make: Make) -> None:
    first, second = make(1), make(2)
    with await first.open() as listening:
        (await second.open()).close()
        try:
            if isinstance(first, LeaseRecords):  # two members of one process cannot lock each other out of a file
                assert await second.living() == sorted([first.name, second.name])
            with await second.dial(first.name) as sock:
                accepted, _ = listening.accept()
                accepted.close()
                assert sock.family in (socket.AF_UNIX, socket.AF_INET)
            await first.close()
            assert first.name not in await second.living()
            assert not await second.is_alive(first.name)
        finally:
            await second.close()


async def test_a_member_without_descriptors_says_that_it_cannot_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for a chat is told to come again; it is no fault of the service."""
    folder = await asyncio.to_thread(disk_records.prepare, tmp_path)
    records = DiskRecords(folder, 1)
    (await records.open()).close()
    try:
        with monkeypatch.context() as short:
            short.setattr(disk_records.os, "open", _no_descriptor)  # type: ignore[attr-defined]
            with pytest.raises(NoRecords, match="Too many open files"):
                await records.is_alive("2-00000000")
        assert not await records.is_alive("2-00000000")
    finally:
        await records.close()


def _no_descriptor(*_arguments: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_start_without_records_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk, or while the API server is down: a sentence, and no trace of the program."""

    def full(folder: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(disk_records, "_connect", full)
    with pytest.raises(OSError, match="disk is full"):
        await asyncio.to_thread(disk_records.prepare, tmp_path)
    membership = Membership(DiskRecords(tmp_path, 1), HopKeys(b"x" * 32))
    with pytest.raises(Unusable, match="disk is full"):
        async with membership.open():
            pass


async def test_the_chats_that_a_member_leaves_behind_are_known_to_the_others(make: Make) -> None:
    """A command may run on in one when the member ends: it needs its network, and somebody who waits for it."""
    leaving, empty, other = make(1), make(2), make(3)
    for each in (leaving, empty, other):
        (await each.open()).close()
    try:
        await leaving.take(DIGEST, None)
        for each in (leaving, empty):
            await each.close()
        assert await other.dead() == [leaving.name]
        assert not await other.is_alive(leaving.name)
        assert await other.owned_by(leaving.name) == [DIGEST]
        await other.bury(leaving.name)
        assert await other.dead() == []
    finally:
        await other.close()


def _odd_leases(member: str) -> list[dict[str, Any]]:
    def lease(kind: str, name: str, spec: Any, notes: Any = None) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": "cubicle-member", "app.kubernetes.io/instance": "small"}
        labels["cubicle.dev/kind"] = kind
        return {"metadata": {"name": name, "labels": labels, "annotations": notes}, "spec": spec}

    far = {"cubicle.dev/address": "example.org:80"}
    return [
        lease("member", "small-member-", {"holderIdentity": ""}),
        lease("member", "small-member-x", None),
        lease("member", "small-member-y", {"holderIdentity": "../../x"}),
        lease("member", "small-member-7-00000000", {"holderIdentity": member}),  # another's name
        lease("member", "small-member-8-00000000", {"holderIdentity": "8-00000000"}, far),
        lease(
            "member", "small-member-9-00000000", {"holderIdentity": "9-00000000"}, {"cubicle.dev/address": "::1:99999"}
        ),
        lease("owner", "small-owner-garbage", {"holderIdentity": member}),
        lease("owner", "small-owner-" + "c" * 32, {"holderIdentity": member, "leaseTransitions": "many"}),
        lease("owner", "small-owner-" + "d" * 32, None),
        lease("owner", "small-owner-" + "e" * 32, {"holderIdentity": "nobody", "leaseTransitions": 2**31 - 1}),
        lease("owner", "elsewhere-" + "f" * 32, {"holderIdentity": member}),
    ]


async def test_leases_that_make_no_sense_are_nobody_and_keep_nobody_from_the_others(tmp_path: Path) -> None:
    make = await asyncio.to_thread(on_a_cluster, tmp_path)
    first, second = make(1), make(2)
    (await first.open()).close()
    (await second.open()).close()
    try:
        assert isinstance(first, LeaseRecords)
        assert first._keeping is not None
        await first.take(DIGEST, None)
        for body in _odd_leases(first.name):
            assert await first._client.create("leases", body) is not None
        names = sorted([first.name, second.name, "8-00000000", "9-00000000"])
        assert await second.living() == names
        for name in ("8-00000000", "9-00000000"):  # it is nowhere that a member could be
            with pytest.raises(OSError, match="not there"):
                await second.dial(name)
        assert await second.owned_by(first.name) == [DIGEST, "c" * 32]
        for digest in ("d" * 32, "e" * 32):
            seen = await second.owner(digest)
            assert seen is not None
            assert not await second.is_alive(seen.holder)
            assert (await second.take(digest, seen)).holder == second.name
        first._keeping.cancel()
        owners = Owners(second)
        async with asyncio.timeout(30), owners.watching():
            while await second.owned_by(first.name) or first.name in await second.dead():
                await asyncio.sleep(0.05)
    finally:
        await second.close()
        await first.close()


async def test_a_member_whose_lease_somebody_changed_is_there_again_and_looks_at_its_chats(tmp_path: Path) -> None:
    make = await asyncio.to_thread(on_a_cluster, tmp_path)
    changed, other = make(1), make(2)
    (await changed.open()).close()
    (await other.open()).close()
    try:
        assert isinstance(changed, LeaseRecords)
        assert changed._keeping is not None
        changed._keeping.cancel()
        await changed._renew()
        assert not changed.lapsed
        name = f"small-member-{changed.name}"
        await changed._client.patch("leases", name, {"spec": {"holderIdentity": "somebody"}})
        assert await other.living() == [other.name]
        await changed._renew()
        assert changed.lapsed
        assert await other.living() == sorted([changed.name, other.name])
        changed.lapsed = False
        await changed._renew()
        assert not changed.lapsed
    finally:
        await other.close()
        await changed.close()


@asynccontextmanager
async def one_silent(folder: Path) -> AsyncIterator[tuple[LeaseRecords, MemberRecords]]:
    """Two members, of which the first has said nothing for so long that the other takes it for dead."""
    make = await asyncio.to_thread(on_a_cluster, folder)
    silent, other = make(1), make(2)
    (await silent.open()).close()
    (await other.open()).close()
    try:
        assert isinstance(silent, LeaseRecords)
        assert silent._keeping is not None
        silent._keeping.cancel()
        async with asyncio.timeout(30):
            while not await other.dead():
                await asyncio.sleep(0.05)
        yield silent, other
    finally:
        await other.close()
        await silent.close()


async def test_a_member_that_is_silent_is_dead_after_a_while(tmp_path: Path) -> None:
    async with one_silent(tmp_path) as (silent, other):
        assert await other.dead() == [silent.name]
        await silent._renew()  # it was only slow: it finds out that others may have its chats
        assert silent.lapsed
        assert await other.living() == sorted([silent.name, other.name])


async def test_a_member_that_is_heard_of_again_is_not_buried(tmp_path: Path) -> None:
    """For the others it would be gone until its next renewal, and what it takes meanwhile would be taken from it."""
    async with one_silent(tmp_path) as (silent, other):
        await silent._renew()
        await other.bury(silent.name)
        assert await other.living() == sorted([silent.name, other.name])
        await other.bury(silent.name)  # it was seen to live by now
        assert await other.living() == sorted([silent.name, other.name])
        async with asyncio.timeout(30):
            while not await other.dead():
                await asyncio.sleep(0.05)
        await other.bury(silent.name)
        assert await other.living() == [other.name]
        assert await other.dead() == []


async def test_while_the_api_server_is_down_nobody_dies_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody could see counts for nothing: requests that members work on go on, and chats stay where they are."""
    monkeypatch.setattr(members, "_BLIND_SECONDS", _RENEW, raising=False)
    make = await asyncio.to_thread(on_a_cluster, tmp_path)
    first, second = make(1), make(2)
    (await first.open()).close()
    (await second.open()).close()
    try:
        assert isinstance(first, LeaseRecords)
        assert isinstance(second, LeaseRecords)
        assert first._keeping is not None
        with pytest.MonkeyPatch.context() as outage:
            for each, verb in ((first, "patch"), (second, "list")):
                outage.setattr(each._client, verb, _no_answer)
            await asyncio.sleep(_DEAD + _RENEW)
            assert await second.is_alive(first.name)
            with pytest.raises(NoRecords):
                await second.dead()
            first._keeping.cancel()  # it is late with its next renewal
        assert await second.dead() == []
        assert await second.living() == sorted([first.name, second.name])
        async with asyncio.timeout(30):  # from now on it is looked at again, and is silent
            while not await second.dead():
                await asyncio.sleep(0.05)
        assert not await second.is_alive(first.name)
    finally:
        await second.close()
        await first.close()


async def _no_answer(*_arguments: object) -> None:
    raise SandboxError("The API server does not answer.")


_MEMBER = """
import asyncio, sys
from pathlib import Path
from cubicle.members.disk_records import DiskRecords
async def main():
    records = DiskRecords(Path(sys.argv[1]), 1)
    await records.open()
    await records.take(sys.argv[2], None)
    print(records.name, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


async def test_a_process_that_is_killed_is_dead_at_once_and_one_that_hangs_is_not(tmp_path: Path) -> None:
    folder = await asyncio.to_thread(disk_records.prepare, tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MEMBER, str(folder), DIGEST), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    name = (await process.stdout.readline()).decode().strip()
    records = DiskRecords(folder, 2)
    (await records.open()).close()
    try:
        assert await records.is_alive(name)
        process.send_signal(signal.SIGSTOP)
        assert await records.is_alive(name)
        process.kill()
        await process.wait()
        assert not await records.is_alive(name)
        assert await records.dead() == [name]
        assert await records.owned_by(name) == [DIGEST]
        assert await records.take(DIGEST, await records.owner(DIGEST)) == Ownership(records.name, 2)
        await records.bury(name)
        assert await records.dead() == []
    finally:
        await records.close()
