"""Guests that stand still: nobody else waits for them, their own callers only a few seconds, and no file is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.files.archive import Archive
from cubicle.machine import liveness
from cubicle.machine.errors import Gone
from cubicle.machine.machine import Machine
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Fleet
from tests.http_api.chat.conftest import site_of
from tests.support.service import service_of

A, B = Chat("a"), Chat("b")
SOON = 20.0
"""More than enough on a busy machine, and less than the patience with a guest that is only slow."""


class Stuck(MemoryDriver):
    """A driver whose sandboxes stay as they are: `stopped` is what it says of them."""

    stopped = True

    async def resume(self, name: str) -> bool:
        return self.stopped


class Slow(Stuck):
    stopped = False


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path
    driver = MemoryDriver(tmp_path)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)


def fleet_over(folder: Path, kind: type[MemoryDriver] = MemoryDriver, **options: Any) -> Fleet:
    return Fleet(kind(folder), ChatIndex(folder / "chats"), **{"pool_size": 0, **options})


def guest_of(folder: Path, name: str) -> int:
    holder = int((folder / "memory" / name / "pid").read_text().split()[0])
    return int(Path(f"/proc/{holder}/task/{holder}/children").read_text())


async def say(machine: Machine, command: str) -> str:
    exit, output = await machine.output(command, timeout=60)
    assert exit.code == 0
    return output.decode()


async def furnish(machine: Machine, number: int = 0) -> None:
    """A file, and a process in the background."""
    await say(machine, f"echo kept-{number} > ~/kept; sleep 300 >/dev/null 2>&1 & echo $! > ~/pid")


async def until_gone(folder: Path, name: str) -> None:
    async with asyncio.timeout(60):
        while (folder / "memory" / name).exists():
            await asyncio.sleep(0.02)


async def test_a_stopped_guest_is_let_run_on_in_the_midst_of_a_call(folder: Path) -> None:
    async with fleet_over(folder) as fleet, fleet.lease(A) as machine:
        await furnish(machine)
        os.kill(guest_of(folder, machine.name), signal.SIGSTOP)
        async with asyncio.timeout(SOON):
            assert await say(machine, "cat ~/kept; kill -0 $(cat ~/pid)") == "kept-0\n"


async def test_a_guest_that_stays_stopped_is_given_up_and_the_next_call_has_a_fresh_one(folder: Path) -> None:
    async with fleet_over(folder, Stuck) as fleet:
        async with fleet.lease(A) as machine:
            await furnish(machine)
            running = asyncio.create_task(machine.output("sleep 300"))
            await machine.ping()
            os.kill(guest_of(folder, machine.name), signal.SIGSTOP)
            async with asyncio.timeout(SOON):
                with pytest.raises(Gone, match=r"given up\. Its files are kept; the next call starts it anew"):
                    await machine.output("true")
                with pytest.raises(Gone, match="given up"):  # the others that wait hear of it at once
                    await running
                with pytest.raises(Gone, match="given up"):
                    await machine.output("true")
        began = time.monotonic()
        async with asyncio.timeout(SOON), fleet.lease(A) as machine:
            assert await say(machine, "cat ~/kept") == "kept-0\n"
        assert time.monotonic() - began < SOON


async def test_a_guest_that_is_only_slow_keeps_its_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_RESUMES", 0)
    async with fleet_over(folder, Slow) as fleet, fleet.lease(A) as machine:
        await furnish(machine)
        guest = guest_of(folder, machine.name)
        os.kill(guest, signal.SIGSTOP)
        calling = asyncio.create_task(say(machine, "cat ~/kept; kill -0 $(cat ~/pid)"))
        await asyncio.wait([calling], timeout=4.5)  # several questions go without an answer
        assert not calling.done()
        os.kill(guest, signal.SIGCONT)
        assert await calling == "kept-0\n"


async def test_a_guest_that_is_silent_for_too_long_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.sandbox.warm_pool.TIMEOUT", 2.0)
    async with fleet_over(folder, Slow) as fleet:
        async with fleet.lease(A) as machine:
            await furnish(machine)
            os.kill(guest_of(folder, machine.name), signal.SIGSTOP)
            with pytest.raises(Gone, match="given up"):
                await machine.output("true")
        async with fleet.lease(A) as machine:
            assert await say(machine, "cat ~/kept") == "kept-0\n"


async def test_archives_of_a_guest_that_hangs_hold_up_no_other(folder: Path) -> None:
    async def packed(machine: Machine) -> bytes:
        return b"".join([chunk async for chunk in Archive(machine).chunks()])

    async with fleet_over(folder, Slow) as fleet, fleet.lease(A) as hung, fleet.lease(B) as well:
        await furnish(well)
        guest = guest_of(folder, hung.name)
        os.kill(guest, signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(packed(hung)) for _ in range(4)]
            await asyncio.sleep(0)
            async with asyncio.timeout(SOON):
                assert b"kept" in await packed(well)
            assert not any(task.done() for task in waiting)
            os.kill(guest, signal.SIGCONT)


@pytest.mark.parametrize("listing", ["/files/{}", "/api/uploads/{}"])
async def test_lists_of_a_guest_that_hangs_hold_up_no_other(folder: Path, listing: str) -> None:
    async with fleet_over(folder, Slow) as fleet, site_of(fleet) as site:
        await site.client.post(f"/api/uploads/{B.id}/kept.txt", content=b"kept")
        async with fleet.lease(A) as machine:
            guest = guest_of(folder, machine.name)
        os.kill(guest, signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(site.client.get(listing.format(A.id))) for _ in range(4)]
            async with asyncio.timeout(SOON):
                while fleet._slots[A.digest].held < 2:
                    await asyncio.sleep(0.01)
                assert "kept.txt" in (await site.client.get(listing.format(B.id))).text
            assert not any(task.done() for task in waiting)
            os.kill(guest, signal.SIGCONT)


@pytest.mark.parametrize("method", ["resources/list", "resources/read"])
async def test_resources_of_a_guest_that_hangs_hold_up_no_other(folder: Path, method: str) -> None:
    async with fleet_over(folder, Slow) as fleet, service_of(fleet) as service:
        for chat in (A, B):
            await service.bash("echo kept > /mnt/user-data/outputs/kept.txt", chat=chat.id)

        def ask(chat: Chat) -> asyncio.Task[dict[str, Any]]:
            params = {"uri": f"file://uploads/{chat.id}/none.txt"} if method == "resources/read" else {}
            return group.create_task(service.ask(method, params, chat=chat.id))

        async with fleet.lease(A) as machine:
            guest = guest_of(folder, machine.name)
        os.kill(guest, signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            waiting = [ask(A) for _ in range(4)]
            async with asyncio.timeout(SOON):
                while fleet._slots[A.digest].leases + fleet._slots[A.digest].held < 2:
                    await asyncio.sleep(0.01)
                assert "result" in (answer := await ask(B)) or "not found" in answer["error"]["message"]
            assert not any(task.done() for task in waiting)
            os.kill(guest, signal.SIGCONT)


async def test_a_service_that_starts_serves_at_once_whatever_hangs(folder: Path) -> None:
    """Six of nine sandboxes are stopped; the service is there, the others work, and the six come back as they were."""
    chats = [Chat(f"chat-{number}") for number in range(9)]
    names: dict[Chat, str] = {}
    async with fleet_over(folder) as fleet:
        for number, chat in enumerate(chats):
            async with fleet.lease(chat) as machine:
                await furnish(machine, number)
                names[chat] = machine.name
    hung, well = chats[:6], chats[6:]
    for chat in hung:
        os.kill(guest_of(folder, names[chat]), signal.SIGSTOP)
    began = time.monotonic()
    async with fleet_over(folder) as fleet:
        for chat in well:
            async with fleet.lease(chat) as machine:
                await say(machine, "kill -0 $(cat ~/pid)")
        served = time.monotonic() - began
        assert all(seen.state is State.RUNNING for seen in fleet.overview())

        async def call(number: int, chat: Chat) -> None:
            async with fleet.lease(chat) as machine:
                assert machine.name == names[chat]
                assert await say(machine, "cat ~/kept; kill -0 $(cat ~/pid)") == f"kept-{number}\n"

        async with asyncio.timeout(SOON):
            await asyncio.gather(*(call(number, chat) for number, chat in enumerate(hung)))
    assert served < SOON


async def test_guests_that_stay_stopped_delay_neither_the_start_nor_others_and_lose_no_file(folder: Path) -> None:
    chats = [Chat(f"chat-{number}") for number in range(6)]
    async with fleet_over(folder) as fleet:
        for number, chat in enumerate(chats):
            async with fleet.lease(chat) as machine:
                await furnish(machine, number)
                os.kill(guest_of(folder, machine.name), signal.SIGSTOP)
    began = time.monotonic()
    async with fleet_over(folder, Stuck) as fleet:
        async with fleet.lease(A) as machine:  # starts of others do not queue behind them
            await say(machine, "true")
        assert time.monotonic() - began < SOON

        async def call(number: int, chat: Chat) -> str:
            async with fleet.lease(chat) as machine:
                return await say(machine, "cat ~/kept")

        async with asyncio.timeout(2 * SOON):
            kept = await asyncio.gather(*(call(number, chat) for number, chat in enumerate(chats)))
        assert kept == [f"kept-{number}\n" for number in range(6)]


async def test_a_service_that_stops_while_it_adopts_lets_go_of_everything(folder: Path) -> None:
    async with fleet_over(folder) as fleet, fleet.lease(A) as machine:
        await furnish(machine)
    os.kill(guest := guest_of(folder, machine.name), signal.SIGSTOP)
    async with asyncio.timeout(SOON), fleet_over(folder, Slow):
        pass
    os.kill(guest, signal.SIGCONT)
    async with fleet_over(folder) as fleet, fleet.lease(A) as machine:
        await say(machine, "kill -0 $(cat ~/pid)")


async def test_a_dead_blank_one_is_noticed_and_deleted_whole(folder: Path) -> None:
    async with fleet_over(folder, pool_size=1) as fleet:
        await fleet.pool.filled()
        [dead] = await fleet._driver.list()
        os.kill(guest_of(folder, dead.name), signal.SIGKILL)
        await until_gone(folder, dead.name)
        await fleet.pool.filled()
        [fresh] = await fleet._driver.list()
        async with fleet.lease(A) as machine:
            assert machine.name == fresh.name


async def test_a_hung_blank_one_is_not_handed_out_but_deleted(folder: Path) -> None:
    async with fleet_over(folder, Stuck, pool_size=1) as fleet:
        await fleet.pool.filled()
        [hung] = await fleet._driver.list()
        os.kill(guest_of(folder, hung.name), signal.SIGSTOP)
        async with asyncio.timeout(SOON), fleet.lease(A) as machine:
            assert machine.name != hung.name
            await say(machine, "true")
        await until_gone(folder, hung.name)


async def test_dead_and_hung_blank_ones_are_deleted_at_the_start(folder: Path) -> None:
    async with fleet_over(folder, pool_size=3) as fleet:
        await fleet.pool.filled()
        dead, hung, well = await fleet._driver.list()
    os.kill(guest_of(folder, dead.name), signal.SIGKILL)
    os.kill(guest_of(folder, hung.name), signal.SIGSTOP)
    async with fleet_over(folder, Stuck, pool_size=3) as fleet:
        await fleet.pool.filled()
        names = {seen.name for seen in await fleet._driver.list()}
    assert well.name in names
    assert not names & {dead.name, hung.name}
    assert len(names) == 3


async def test_a_blank_one_that_cannot_be_deleted_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.sandbox.warm_pool._REST_AFTER_FAILURE", 0.1)
    tries: list[str] = []

    class Refusing(MemoryDriver):
        async def delete(self, name: str) -> None:
            tries.append(name)
            if len(tries) < 3:
                raise OSError(16, "Device or resource busy")
            await super().delete(name)

    async with fleet_over(folder, Refusing, pool_size=1) as fleet:
        await fleet.pool.filled()
        [dead] = await fleet._driver.list()
        os.kill(guest_of(folder, dead.name), signal.SIGKILL)
        await until_gone(folder, dead.name)
        assert tries == [dead.name] * 3
