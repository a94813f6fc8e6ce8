"""What is stopped, removed and deleted for its age: by service, never by the date."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.journal.journal import Journal
from cubicle.machine.errors import SandboxError
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.clock import DAY, Clock
from cubicle.sandbox.driver import Driver, State
from cubicle.sandbox.expiry import Ages, Fate, fate, is_deleted
from cubicle.sandbox.fleet import Fleet, NoSandbox
from cubicle.sandbox.trash import TrashNote
from tests.drivers.makers import Maker, memory, oci
from tests.support.emptying import empty

HOUR = 3600.0
AGES = Ages(DAY, 30 * DAY, 7 * DAY)
CHATS = [Chat(f"chat-{number}") for number in range(3)]


@pytest.mark.parametrize(
    ("idle", "calm", "in_use", "up", "expected"),
    [
        (0, DAY, False, True, Fate.KEEP),
        (DAY - 1, DAY, False, True, Fate.KEEP),
        (DAY, 0, False, True, Fate.STOP),
        (DAY, DAY, True, True, Fate.KEEP),
        (DAY, DAY, False, False, Fate.KEEP),
        (30 * DAY - 1, DAY, False, False, Fate.KEEP),
        (30 * DAY, HOUR, False, False, Fate.REMOVE),
        (30 * DAY, HOUR, False, True, Fate.REMOVE),
        (30 * DAY, HOUR - 1, False, True, Fate.STOP),
        (30 * DAY, HOUR - 1, False, False, Fate.KEEP),
        (900 * DAY, HOUR - 1, False, False, Fate.KEEP),
        (900 * DAY, DAY, True, True, Fate.KEEP),
        (-900 * DAY, DAY, False, True, Fate.KEEP),
    ],
)
def test_the_fate_of_a_chat(idle: float, calm: float, in_use: bool, up: bool, expected: Fate) -> None:
    assert fate(AGES, idle=idle, calm=calm, in_use=in_use, up=up) is expected


@pytest.mark.parametrize(
    ("age", "calm", "readable", "deleted"),
    [
        (7 * DAY, HOUR, True, True),
        (7 * DAY - 1, DAY, True, False),
        (7 * DAY, HOUR - 1, True, False),
        (900 * DAY, DAY, False, False),
        (-7 * DAY, DAY, True, False),
    ],
)
def test_the_end_of_the_trash(age: float, calm: float, readable: bool, deleted: bool) -> None:
    assert is_deleted(AGES, age=age, calm=calm, readable=readable) is deleted


@dataclass
class Machine:
    """The clocks that a fleet is given; `up` runs by itself."""

    ahead: float = 0.0
    date_ahead: float = 0.0
    boot: str = "boot 1"

    def clock(self) -> Clock:
        return Clock(
            lambda: time.time() + self.ahead + self.date_ahead, lambda: time.monotonic() + self.ahead, lambda: self.boot
        )


MakeFleet = Callable[..., Fleet]


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(params=[pytest.param(memory, id="memory"), pytest.param(oci("runc"), id="oci", marks=pytest.mark.oci)])
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    made: Maker = request.param(tmp_path)
    return made


@pytest.fixture
async def make(maker: Maker, tmp_path: Path, machine: Machine) -> AsyncIterator[MakeFleet]:
    def make(**options: Any) -> Fleet:
        clocks: dict[str, Any] = {"clock": machine.clock(), "clock_file": tmp_path / "clock.json"}
        return Fleet(maker(), ChatIndex(tmp_path / "chats"), **{"pool_size": 0, **clocks, **options})

    yield make
    await empty(maker())


def driver_of(fleet: Fleet) -> Driver:
    return fleet._driver


async def sweep(fleet: Fleet) -> None:
    await fleet._expiry.sweep()


async def fill(fleet: Fleet) -> None:
    for chat in CHATS:
        async with fleet.lease(chat) as found:
            assert (await found.output(f"echo {chat.id} > ~/kept"))[0].code == 0


async def lost(fleet: Fleet) -> int:
    """How many chats have lost their file."""
    count = 0
    for chat in CHATS:
        async with fleet.lease(chat) as found:
            count += (await found.output("cat ~/kept"))[1].decode() != f"{chat.id}\n"
    return count


async def service_for(fleet: Fleet, machine: Machine, seconds: float) -> None:
    """Let the service run for so long: a sweep is told of at most four minutes at a time."""
    while seconds > 0:
        step = min(240.0, seconds)
        machine.ahead, seconds = machine.ahead + step, seconds - step
        fleet._clock.tick()
    await sweep(fleet)


@pytest.mark.parametrize(
    "jump", [31 * DAY, -31 * DAY, -time.time(), 10_000 * DAY], ids=["+31", "-31", "1970", "+10000"]
)
async def test_a_date_that_is_set_while_the_service_runs_loses_no_chat(
    make: MakeFleet, machine: Machine, jump: float
) -> None:
    async with make() as fleet:
        await fill(fleet)
        await service_for(fleet, machine, 2 * HOUR)
        machine.date_ahead = jump
        await sweep(fleet)
        assert {overview.state for overview in fleet.overview()} == {State.RUNNING}
        await service_for(fleet, machine, 2 * HOUR)
        machine.date_ahead = 0
        await service_for(fleet, machine, 2 * HOUR)
        assert {overview.state for overview in fleet.overview()} == {State.RUNNING}
        assert await fleet.trash() == []
        assert await lost(fleet) == 0


@pytest.mark.parametrize("wrong", [31 * DAY, -31 * DAY, -time.time()], ids=["+31", "-31", "1970"])
async def test_a_boot_with_a_wrong_date_that_is_then_corrected_loses_no_chat(
    make: MakeFleet, machine: Machine, wrong: float
) -> None:
    async with make() as fleet:
        await fill(fleet)
    machine.date_ahead, machine.boot = wrong, "boot 2"
    async with make() as fleet:
        await service_for(fleet, machine, 30 * 60)
        machine.date_ahead = 0
        await service_for(fleet, machine, 2 * HOUR)
        assert await fleet.trash() == []
        assert await lost(fleet) == 0


async def test_records_of_the_future_or_of_1970_lose_no_chat(make: MakeFleet, machine: Machine, tmp_path: Path) -> None:
    async with make() as fleet:
        await fill(fleet)
    for number, path in enumerate(sorted((tmp_path / "chats").iterdir())):
        stamp = [0.0, time.time() + 400 * DAY, time.time() - 400 * DAY][number]
        fields = json.loads(path.read_bytes()) | {"since": stamp}
        path.write_text(json.dumps(fields))
        os.utime(path, (stamp, stamp))
    async with make() as fleet:
        await service_for(fleet, machine, 2 * HOUR)
        assert await fleet.trash() == []
        assert await lost(fleet) == 0


async def test_after_thirty_days_of_service_a_chat_goes_to_the_trash_and_after_seven_more_it_is_deleted(
    make: MakeFleet, machine: Machine
) -> None:
    async with make() as fleet:
        await fill(fleet)
        await service_for(fleet, machine, 29 * DAY)
        assert {overview.state for overview in fleet.overview()} == {State.STOPPED}
        async with fleet.lease(CHATS[0]):
            pass
        await service_for(fleet, machine, 1.1 * DAY)
        assert [overview.chat for overview in fleet.overview()] == [CHATS[0]]
        assert {each.note.chat for each in await fleet.trash() if each.note} == {*CHATS[1:]}
    async with make() as fleet:
        await service_for(fleet, machine, 6.9 * DAY)
        assert len(await fleet.trash()) == 2
    async with make() as fleet:
        await service_for(fleet, machine, 0.2 * DAY)
        assert await fleet.trash() == []
        async with fleet.lease(CHATS[0]) as found:
            assert (await found.output("cat ~/kept"))[1] == b"chat-0\n"
        async with fleet.lease(CHATS[1]) as found:
            assert (await found.output("ls ~"))[1] == b""


async def test_nothing_is_removed_within_an_hour_of_a_start(make: MakeFleet, machine: Machine) -> None:
    async with make() as fleet:
        await fill(fleet)
        await service_for(fleet, machine, 29.99 * DAY)
    for _ in range(3):
        async with make() as fleet:
            await service_for(fleet, machine, 59 * 60)
            assert await fleet.trash() == []
    async with make() as fleet:
        await service_for(fleet, machine, 61 * 60)
        assert len(await fleet.trash()) == 3


async def test_a_service_that_is_restarted_every_day_removes_in_the_end(make: MakeFleet, machine: Machine) -> None:
    async with make() as fleet:
        await fill(fleet)
    for day in range(31):
        machine.boot = f"boot {day + 2}"
        async with make() as fleet:
            assert len(await fleet.trash()) == (0 if day < 30 else 3)
            await service_for(fleet, machine, DAY)


async def test_without_a_trash_an_old_chat_is_deleted(make: MakeFleet, machine: Machine) -> None:
    async with make(trash_after=0) as fleet:
        await fill(fleet)
        await service_for(fleet, machine, 31 * DAY)
        assert fleet.overview() == []
        assert await fleet.trash() == []


async def test_what_is_restored_while_the_trash_is_emptied_is_not_deleted(
    make: MakeFleet, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To delete a large sandbox takes its time: `cubicle undelete` may say "Restored" of the next one meanwhile."""
    restored: list[Chat] = []
    async with make() as fleet:
        await fill(fleet)
        for chat in CHATS:
            await fleet.remove(chat)
        await sweep(fleet)
        driver = driver_of(fleet)
        purge = driver.purge

        async def purge_late(name: str) -> bool:
            for each in await driver.discarded():  # that very one, and another
                if len(restored) < 2 and each.note is not None and each.note.chat is not None:
                    await driver.restore(each.name, each.note.chat.digest)
                    await asyncio.to_thread(ChatIndex(tmp_path / "chats").enter, each.note.chat)
                    restored.append(each.note.chat)
            return await purge(name)

        monkeypatch.setattr(driver, "purge", purge_late)
        await service_for(fleet, machine, 7.1 * DAY)
        assert await fleet.trash() == []
        assert len(restored) == 2
        for chat in restored:
            async with fleet.lease(chat, create=False) as found:
                assert (await found.output("cat ~/kept"))[1].decode() == f"{chat.id}\n"


async def test_one_that_cannot_be_deleted_keeps_no_other_in_the_trash(
    make: MakeFleet, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make() as fleet:
        await fill(fleet)
        for chat in CHATS:
            await fleet.remove(chat)
        await sweep(fleet)
        stays, purge = sorted(each.name for each in await fleet.trash())[0], driver_of(fleet).purge

        async def purge_others(name: str) -> bool:
            if name == stays:
                raise SandboxError("it cannot be deleted")
            return await purge(name)

        monkeypatch.setattr(driver_of(fleet), "purge", purge_others)
        await service_for(fleet, machine, 7.1 * DAY)
        assert [each.name for each in await fleet.trash()] == [stays]


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
async def test_what_is_removed_again_is_in_the_trash_for_its_whole_time(
    make: MakeFleet, machine: Machine, seen: bool
) -> None:
    chat, other = CHATS[:2]
    async with make() as fleet:
        await fill(fleet)
        await fleet.remove(chat)
        await fleet.remove(other)
        await sweep(fleet)
        await service_for(fleet, machine, 6.9 * DAY)
        await fleet._expiry.save()
        removed = {each.note.chat: each.name for each in await fleet.trash() if each.note is not None}
        await driver_of(fleet).restore(removed[chat], chat.digest)
        if seen:
            await sweep(fleet)
        assert await fleet.remove(chat)
        await sweep(fleet)
        await service_for(fleet, machine, 0.2 * DAY)
        assert [each.name for each in await fleet.trash()] == [removed[chat]]
        await service_for(fleet, machine, 7 * DAY)
        assert await fleet.trash() == []


async def test_the_end_of_an_old_sandbox_in_the_trash_leaves_its_chat_what_it_has(
    make: MakeFleet, machine: Machine, tmp_path: Path
) -> None:
    """The chat has a new sandbox that this process has not used: another worker has the chat, or it was rescued."""
    chat, folder = CHATS[0], tmp_path / "journal"
    async with Journal(folder) as journal, make(journal=journal) as fleet:
        async with fleet.lease(chat):
            pass
        await fleet.remove(chat)
        await sweep(fleet)
        await driver_of(fleet).start(fleet.pool.part.new_name(), chat.digest)
        await service_for(fleet, machine, 7.1 * DAY)
        assert await fleet.trash() == []
    assert list((folder / chat.digest).glob("*.jsonl")) != []


async def test_what_cannot_be_saved_is_said_and_serves_on(
    make: MakeFleet, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with make() as fleet:
        await fill(fleet)
        (tmp_path / "clock.json").mkdir()
        await fleet._expiry.save()
        assert "could not be written" in caplog.text
        assert await lost(fleet) == 0
        (tmp_path / "clock.json").rmdir()


async def test_a_chat_restored_beside_the_service_is_seen(make: MakeFleet, machine: Machine, tmp_path: Path) -> None:
    async with make() as fleet:
        await fill(fleet)
        await fleet.remove(CHATS[0])
        await fleet.remove(CHATS[1])
        await sweep(fleet)
        assert len(fleet.overview()) == 1
        chat_index = ChatIndex(tmp_path / "chats")
        for each in await fleet.trash():
            assert each.note is not None
            assert each.note.chat is not None
            await driver_of(fleet).restore(each.name, each.note.chat.digest)
            await asyncio.to_thread(chat_index.enter, each.note.chat)
        async with fleet.lease(CHATS[1], create=False) as found:  # at once
            assert (await found.output("cat ~/kept"))[1] == b"chat-1\n"
        await sweep(fleet)  # the other one, at the next look
        assert fleet.has(CHATS[0])
        assert await lost(fleet) == 0


async def test_a_chat_removed_seen_and_restored_beside_the_service_is_whole(
    make: MakeFleet, machine: Machine, tmp_path: Path
) -> None:
    async with make() as fleet:
        await fill(fleet)
        overview = fleet.state(CHATS[0])
        assert overview is not None
        driver, note = driver_of(fleet), TrashNote(CHATS[0], "by hand", time.time())
        await driver.discard(overview.name, note)
        with pytest.raises(NoSandbox):
            async with fleet.lease(CHATS[0], create=False):
                pass
        assert not await fleet.remove(CHATS[0])
        await driver.restore(overview.name, CHATS[0].digest)
        async with fleet.lease(CHATS[0], create=False) as found:
            assert found.name == overview.name
        await driver.discard(overview.name, note)
        with pytest.raises(NoSandbox):
            async with fleet.lease(CHATS[0], create=False):
                pass
        await driver.restore(overview.name, CHATS[0].digest)
        assert await fleet.remove(CHATS[0])
        assert [each.name for each in await fleet.trash()] == [overview.name]
        await driver.restore(overview.name, CHATS[0].digest)
        assert await lost(fleet) == 0


async def test_a_chat_removed_beside_the_service_gets_a_new_sandbox(make: MakeFleet, machine: Machine) -> None:
    async with make() as fleet:
        await fill(fleet)
        overview = fleet.state(CHATS[0])
        assert overview is not None
        await driver_of(fleet).discard(overview.name, TrashNote(CHATS[0], "by hand", time.time()))
        with pytest.raises(NoSandbox):
            async with fleet.lease(CHATS[0], create=False):
                pass
        assert len(await driver_of(fleet).list()) == 2
        async with fleet.lease(CHATS[0]) as found:
            assert (await found.output("ls ~"))[1] == b""
            assert found.name != overview.name
        assert [each.name for each in await fleet.trash()] == [overview.name]
        second = fleet.state(CHATS[1])
        assert second is not None
        await driver_of(fleet).discard(second.name, TrashNote(CHATS[1], "by hand", time.time()))
        await sweep(fleet)
        assert not fleet.has(CHATS[1])
        assert fleet.has(CHATS[0])


async def test_a_sandbox_that_another_chat_got_beside_the_service_ages_by_that_chat(
    make: MakeFleet, machine: Machine, tmp_path: Path
) -> None:
    """`cubicle rm` and `undelete --as` between two looks: it never was in the trash, as far as the service saw."""
    old, new, index = CHATS[0], Chat("new"), ChatIndex(tmp_path / "chats")
    async with make() as fleet:
        await fill(fleet)
        await sweep(fleet)
        overview = fleet.state(old)
        assert overview is not None
        await driver_of(fleet).discard(overview.name, TrashNote(old, "by hand", time.time()))
        await asyncio.to_thread(index.remove, old.digest)
        await driver_of(fleet).restore(overview.name, new.digest)
        await asyncio.to_thread(index.enter, new)
        async with fleet.lease(new) as found:
            assert found.name == overview.name
            await service_for(fleet, machine, 1.1 * DAY)
            assert (await found.output("cat ~/kept"))[1] == b"chat-0\n"
            await service_for(fleet, machine, 30 * DAY)
        assert overview.name not in {each.name for each in await fleet.trash()}
        assert not fleet.has(old)
        async with fleet.lease(new) as found:
            assert (await found.output("cat ~/kept"))[1] == b"chat-0\n"


async def test_an_imported_chat_does_not_age_by_the_name_that_it_was_imported_under(
    make: MakeFleet, machine: Machine, tmp_path: Path
) -> None:
    """The service looks, for something else is removed, while `cubicle import` fills a sandbox."""
    importing, new, index = Chat("import-0123"), Chat("new"), ChatIndex(tmp_path / "chats")
    async with make() as fleet:
        await fill(fleet)
        driver, name = driver_of(fleet), fleet.pool.part.new_name()
        await asyncio.to_thread(index.enter, importing)
        await driver.start(name, importing.digest)
        await fleet.remove(CHATS[0])
        await sweep(fleet)
        await driver.discard(name, TrashNote(new, "an import that was not finished", time.time()))
        await driver.restore(name, new.digest)
        await asyncio.to_thread(index.remove, importing.digest)
        await asyncio.to_thread(index.enter, new)
        async with fleet.lease(new) as found:
            await found.output("echo new > ~/kept")
            await service_for(fleet, machine, 31 * DAY)
            assert name not in {each.name for each in await fleet.trash()}
            assert (await found.output("cat ~/kept"))[1] == b"new\n"
