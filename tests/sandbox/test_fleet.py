"""The fleet: one sandbox per chat, made once, kept for as long as it is used, found again after a restart."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.machine.errors import Gone, NotRunning, StartFailed
from cubicle.machine.machine import Machine
from cubicle.machine.stream import Stream
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import State
from cubicle.sandbox.fleet import Asleep, Fleet, NoSandbox
from cubicle.sandbox.trash import TrashNote

A, B = Chat("a"), Chat("A")


class Counting(MemoryDriver):
    """The memory driver, counting and failing where a test wants it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.starts: list[tuple[str, str | None]] = []
        self.broken = ""
        self.fault: Exception | None = None

    async def start(self, name: str, owner: str | None) -> None:
        self.starts.append((name, owner))
        if self.broken:
            raise StartFailed(self.broken)
        if self.fault is not None:
            raise self.fault
        await super().start(name, owner)

    async def stop(self, name: str) -> None:
        if self.fault is not None:
            raise self.fault
        await super().stop(name)


MakeFleet = Callable[..., Fleet]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeFleet]:
    def make(**options: Any) -> Fleet:
        return Fleet(Counting(tmp_path), ChatIndex(tmp_path / "chats"), **{"pool_size": 0, **options})

    yield make
    driver = MemoryDriver(tmp_path)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)


def driver_of(fleet: Fleet) -> Counting:
    driver = fleet._driver
    assert isinstance(driver, Counting)
    return driver


async def say(machine: Machine, command: str) -> str:
    exit, output = await machine.output(command, timeout=60)
    assert exit.code == 0
    return output.decode()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def test_first_calls_at_once_start_one_sandbox(make: MakeFleet) -> None:
    async with make() as fleet:

        async def call(i: int) -> str:
            async with fleet.lease(A) as machine:
                await say(machine, f"touch ~/{i}")
                return machine.name

        assert len({*await asyncio.gather(*(call(i) for i in range(10)))}) == 1
        assert len(driver_of(fleet).starts) == 1
        async with fleet.lease(A) as machine:
            assert (await say(machine, "ls ~")).split() == [str(i) for i in range(10)]


async def test_chats_that_differ_in_case_or_tenant_are_apart(make: MakeFleet) -> None:
    async with make() as fleet:
        names = set()
        for chat in (A, B, Chat("a", "other")):
            async with fleet.lease(chat) as machine:
                names.add(machine.name)
                assert await say(machine, "ls ~") == ""
                await say(machine, "touch ~/mine")
        assert len(names) == 3


async def test_without_leave_to_create_nothing_is_created(make: MakeFleet) -> None:
    async with make() as fleet:
        with pytest.raises(NoSandbox):
            async with fleet.lease(A, create=False):
                pass
        assert fleet.overview() == []
        assert not fleet.has(A)
        async with fleet.lease(A):
            pass
        async with fleet.lease(A, create=False) as machine:
            await machine.ping()


async def test_a_new_chat_takes_a_blank_one_from_the_pool(make: MakeFleet) -> None:
    async with make(pool_size=2) as fleet:
        await fleet.pool.filled()
        blank = {name for name, owner in driver_of(fleet).starts if owner is None}
        assert len(blank) == 2
        async with fleet.lease(A) as one, fleet.lease(B) as two:
            assert {one.name, two.name} == blank
        await fleet.pool.filled()
        assert len([owner for _, owner in driver_of(fleet).starts if owner is None]) == 4


async def test_blank_ones_are_furnished_before_anybody_waits(make: MakeFleet) -> None:
    async def furnish(machine: Machine) -> None:
        await machine.write("/mnt/skills/there", b"1", as_root=True)

    async with make(pool_size=1, furnish=furnish) as fleet:
        await fleet.pool.filled()
        async with fleet.lease(A) as machine:
            assert await say(machine, "cat /mnt/skills/there") == "1"


@pytest.mark.real
async def test_thirty_two_new_chats_at_once_all_get_their_own(make: MakeFleet) -> None:
    async with make(pool_size=2) as fleet:

        async def call(i: int) -> str:
            async with fleet.lease(Chat(f"chat-{i}")) as machine:
                assert await say(machine, "ls ~") == ""
                await say(machine, f"echo {i} > ~/{i}")
                assert await say(machine, "cat ~/*") == f"{i}\n"
                return machine.name

        assert len({*await asyncio.gather(*(call(i) for i in range(32)))}) == 32


async def test_an_idle_sandbox_is_stopped_and_wakes_with_its_files(make: MakeFleet) -> None:
    async with make(idle_after=0.3) as fleet:
        async with fleet.lease(A) as machine:
            await say(machine, "echo kept > ~/kept")
            await asyncio.sleep(0.8)
            await machine.ping()
        await until(lambda: fleet.overview()[0].state is State.STOPPED)
        async with fleet.lease(A) as machine:
            assert await say(machine, "cat ~/kept") == "kept\n"
            assert fleet.overview()[0].state is State.RUNNING


async def test_a_look_is_no_use_and_starts_nothing(make: MakeFleet) -> None:
    async with make(idle_after=0.4) as fleet:
        with pytest.raises(NoSandbox):
            async with fleet.look(A):
                pass
        async with fleet.lease(A) as machine:
            await say(machine, "echo kept > ~/kept")
        with pytest.raises(Asleep):
            while True:  # until the idle limit is over, however often it is looked at
                with suppress(Gone):
                    async with fleet.look(A) as machine:
                        await machine.ping()
        starts = len(driver_of(fleet).starts)
        with pytest.raises(Asleep, match="its files are kept"):
            async with fleet.look(A):
                pass
        with pytest.raises(Asleep):
            async with fleet.lease(A, create=False, wake=False):
                pass
        assert len(driver_of(fleet).starts) == starts
        assert fleet.condition(A) == "stopped"


async def test_a_read_under_way_is_not_cut_off_by_the_idle_limit(make: MakeFleet) -> None:
    async with make(idle_after=0.2) as fleet:
        async with fleet.lease(A):
            pass
        async with fleet.look(A, hold=True) as machine:
            await asyncio.sleep(1)
            await machine.ping()
            assert fleet.overview()[0].idle_seconds > 0.2, "it is no use all the same"
        await until(lambda: fleet.condition(A) == "stopped")


async def test_a_look_ends_at_once_when_the_sandbox_is_stopped(make: MakeFleet) -> None:
    async with make() as fleet:
        async with fleet.lease(A) as machine:
            pass
        async with fleet.look(A, hold=True) as machine:
            waiting = asyncio.create_task(machine.output("sleep 300", timeout=300))
            await say(machine, "until pgrep -x sleep; do :; done")
            await fleet.stop(A)
            with pytest.raises(Gone):
                async with asyncio.timeout(30):
                    await waiting
            assert machine.stopped == "The operator stopped this sandbox."
        assert fleet.condition(A) == "stopped"


async def test_what_fails_without_waking_is_no_use(make: MakeFleet) -> None:
    async with make() as fleet:
        async with fleet.lease(A):
            pass
        await until(lambda: fleet.overview()[0].idle_seconds > 0.3)
        with pytest.raises(NotRunning):
            async with fleet.lease(A, create=False, wake=False):
                raise NotRunning("nothing listens there")
        assert fleet.overview()[0].idle_seconds > 0.3
        async with fleet.lease(A, create=False, wake=False):
            pass
        assert fleet.overview()[0].idle_seconds < 0.3


async def test_a_slow_stop_is_not_taken_for_a_crash(make: MakeFleet) -> None:
    """Whoever finds the connection broken while the driver still stops it does not start it again."""
    async with make() as fleet:
        async with fleet.lease(A):
            pass
        driver = driver_of(fleet)
        stopping, go_on = asyncio.Event(), asyncio.Event()
        stop = driver.stop

        async def slow(name: str) -> None:
            stopping.set()
            await go_on.wait()
            await stop(name)

        driver.stop = slow  # type: ignore[method-assign]
        task = asyncio.create_task(fleet.stop(A))
        await stopping.wait()
        with pytest.raises(Asleep):
            async with fleet.lease(A, create=False, wake=False):
                pass
        go_on.set()
        await task
        assert fleet.condition(A) == "stopped"
        assert len(driver.starts) == 1


async def test_one_that_was_stopped_by_another_program_stays_down(make: MakeFleet) -> None:
    async with make() as fleet:
        async with fleet.lease(A) as machine:
            name = machine.name
        await driver_of(fleet).stop(name)
        await until(lambda: fleet.condition(A) == "stopped")
        with pytest.raises(Asleep):
            async with fleet.lease(A, create=False, wake=False):
                pass


async def test_after_its_time_everything_of_a_chat_is_removed(make: MakeFleet, tmp_path: Path) -> None:
    async with make(idle_after=0.2, remove_after=0.5) as fleet:
        async with fleet.lease(A):
            pass
        await until(lambda: not fleet.overview())
        assert await driver_of(fleet).list() == []
        assert not list((tmp_path / "chats").iterdir())
        async with fleet.lease(A) as machine:
            assert await say(machine, "ls ~") == ""


async def test_a_restarted_service_finds_its_sandboxes(make: MakeFleet) -> None:
    async with make(pool_size=1) as fleet:
        await fleet.pool.filled()
        async with fleet.lease(A) as machine:
            name = machine.name
            await say(machine, "echo kept > ~/kept; sleep 300 >/dev/null 2>&1 & echo $! > ~/pid")
        await fleet.pool.filled()
    async with make(pool_size=1) as fleet:
        assert [(o.chat, o.state, o.name) for o in fleet.overview()] == [(A, State.RUNNING, name)]
        await fleet.pool.filled()
        assert driver_of(fleet).starts == []
        async with fleet.lease(A, create=False) as machine:
            assert machine.name == name
            await say(machine, "grep -q kept ~/kept && kill -0 $(cat ~/pid)")


async def test_blank_ones_over_the_pool_size_are_removed_at_the_start(make: MakeFleet) -> None:
    async with make(pool_size=3) as fleet:
        await fleet.pool.filled()
    async with make(pool_size=1) as fleet:
        await fleet.pool.filled()
        assert len(await driver_of(fleet).list()) == 1


async def test_a_killed_sandbox_is_started_anew_at_the_next_call(make: MakeFleet) -> None:
    async with make() as fleet:
        async with fleet.lease(A) as machine:
            await say(machine, "echo kept > ~/kept")
        await driver_of(fleet).stop(machine.name)
        async with asyncio.timeout(60):
            await machine.gone()
            async with fleet.lease(A) as machine:
                assert await say(machine, "cat ~/kept") == "kept\n"


async def test_a_failed_start_says_why_and_the_next_one_tries_again(make: MakeFleet) -> None:
    async with make() as fleet:
        driver_of(fleet).broken = "The moon is in the way."
        with pytest.raises(StartFailed, match="The moon is in the way"):
            async with fleet.lease(A):
                pass
        seen = fleet.overview()[0]
        assert (seen.state, seen.reason) == (State.FAILED, "The moon is in the way.")
        driver_of(fleet).broken = ""
        async with fleet.lease(A) as machine:
            await machine.ping()
        assert fleet.overview()[0].reason == ""


@pytest.mark.parametrize(
    ("fault", "told"),
    [(OSError(errno.ENOSPC, "No space left on device", "/srv/x"), "No space left"), (KeyError("secret"), "log")],
)
async def test_a_fault_that_nobody_foresaw_fails_one_start_and_not_the_service(
    make: MakeFleet, fault: Exception, told: str
) -> None:
    async with make(pool_size=1) as fleet:
        await fleet.pool.filled()
        async with fleet.lease(A) as machine:
            await say(machine, "true")
        driver_of(fleet).fault = fault  # the pool, which fills up again, meets it as well
        with pytest.raises(StartFailed, match=told) as failure:
            async with fleet.lease(B):
                pass
        assert not {"/srv/x", "secret"} & set(str(failure.value).replace("'", " ").split())
        async with fleet.lease(A) as machine:
            assert await say(machine, "echo on") == "on\n"
        driver_of(fleet).fault = None
        async with fleet.lease(B) as machine:
            assert await say(machine, "echo on") == "on\n"


async def test_one_sandbox_that_cannot_be_stopped_does_not_end_the_sweeping(make: MakeFleet) -> None:
    async with make(idle_after=0.3) as fleet:
        async with fleet.lease(A):
            driver_of(fleet).fault = OSError(errno.EIO, "Input/output error")
        await asyncio.sleep(0.6)
        driver_of(fleet).fault = None
        await until(lambda: fleet.overview()[0].state is State.STOPPED)


async def test_a_fault_of_what_attends_a_machine_stays_with_it(make: MakeFleet) -> None:
    @asynccontextmanager
    async def sandbox_service(chat: Chat, machine: Machine) -> AsyncIterator[None]:
        raise KeyError("nobody foresaw this")
        yield

    async with make(sandbox_services=[sandbox_service]) as fleet, fleet.lease(A) as machine:
        assert await say(machine, "echo on") == "on\n"


async def test_a_fault_over_one_caller_from_the_sandbox_does_not_end_the_listening(make: MakeFleet) -> None:
    async def served(stream: Stream) -> None:
        if (await stream.read(1)) == b"!":
            raise KeyError("nobody foresaw this")
        await stream.write(b"served")

    call = "exec 3<>/dev/tcp/127.0.0.1/{}; printf {} >&3; cat <&3"
    async with make() as fleet, fleet.lease(A) as machine, machine.listen(0, served) as port:
        assert await say(machine, call.format(port, "!")) == ""
        assert await say(machine, call.format(port, "?")) == "served"


async def test_a_caller_that_goes_away_does_not_spoil_the_start_for_others(make: MakeFleet) -> None:
    async with make() as fleet:

        async def call() -> str:
            async with fleet.lease(A) as machine:
                return machine.name

        first = asyncio.create_task(call())
        await asyncio.sleep(0)
        second = asyncio.create_task(call())
        await asyncio.sleep(0.01)
        first.cancel()
        assert await second
        assert len(driver_of(fleet).starts) == 1


async def test_stop_and_remove_by_hand(make: MakeFleet) -> None:
    async with make() as fleet:
        async with fleet.lease(A) as machine:
            await say(machine, "echo kept > ~/kept")
        await fleet.stop(A)
        assert fleet.overview()[0].state is State.STOPPED
        async with fleet.lease(A) as machine:
            assert await say(machine, "cat ~/kept") == "kept\n"
        assert await fleet.remove(A)
        assert not await fleet.remove(A)
        assert fleet.overview() == []


async def test_stopping_a_chat_does_not_stop_what_another_chat_has_by_now(make: MakeFleet) -> None:
    """`cubicle rm` and `undelete --as` since the service looked last."""
    async with make() as fleet:
        async with fleet.lease(A) as machine:
            name = machine.name
        await driver_of(fleet).discard(name, TrashNote(A, "by hand", 0.0))
        await driver_of(fleet).restore(name, B.digest)
        async with fleet.lease(B) as machine:
            assert machine.name == name
            await fleet.stop(A)
            assert await say(machine, "echo still here") == "still here\n"


async def test_what_attends_a_machine_lives_as_long_as_it(make: MakeFleet) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def sandbox_service(chat: Chat, machine: Machine) -> AsyncIterator[None]:
        events.append(f"in {chat.id}")
        yield
        events.append(f"out {chat.id}")

    async with make(sandbox_services=[sandbox_service]) as fleet:
        async with fleet.lease(A):
            assert events == ["in a"]
        async with fleet.lease(A):
            assert events == ["in a"]
        await fleet.stop(A)
        await until(lambda: events == ["in a", "out a"])
        async with fleet.lease(A):
            assert events == ["in a", "out a", "in a"]
    assert events[-1] == "out a"


async def test_chats_that_never_got_a_sandbox_are_kept_in_bounded_number(make: MakeFleet) -> None:
    async with make() as fleet:
        driver_of(fleet).broken = "The moon is in the way."
        for number in range(230):
            with pytest.raises(StartFailed):
                async with fleet.lease(Chat(f"chat-{number}")):
                    pass
        seen = fleet.overview()
        assert len(seen) == 200
        assert fleet.state(Chat("chat-229")) is not None
        assert fleet.state(Chat("chat-0")) is None


async def test_a_chat_that_is_removed_while_it_is_used_leaves_nothing_and_is_told_of(make: MakeFleet) -> None:
    told: list[Chat] = []
    async with make() as fleet:
        fleet.on_removed(told.append)
        async with fleet.lease(A):
            assert await fleet.remove(A)
        assert fleet.state(A) is None
        assert told == [A]
        async with fleet.lease(A) as machine:
            await machine.ping()
