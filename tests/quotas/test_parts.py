"""The parts of the quotas, each by itself: calls, daily use on disk, the queue of starts, load shedding."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.egress.quota import Moment
from cubicle.egress.tally import EgressReport, EgressTally
from cubicle.machine.errors import StartRefused
from cubicle.metrics.loop_lag import LoopLag
from cubicle.metrics.metrics import Metrics
from cubicle.quotas import start_queue
from cubicle.quotas.call_quotas import CallQuotas
from cubicle.quotas.daily_usage import DailyUsage, DayUse
from cubicle.quotas.disk_usage import DiskUsage
from cubicle.quotas.limits import Limit, LimitTable, Overloaded, QuotaExceeded, QuotaLimits, Scope, Subject
from cubicle.quotas.load_shedding import LoadShedding
from cubicle.quotas.owners import ChatOwners, subjects_of
from cubicle.quotas.quotas import Quotas
from cubicle.quotas.start_queue import StartQueue
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import load

ACME, ANN, BOB = (
    Subject(Scope.TENANT, "acme"),
    Subject(Scope.USER, "acme", "ann"),
    Subject(Scope.USER, "acme", "bob"),
)
DAY = 86400.0


class Hands:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def limits(tenant: QuotaLimits | None = None, user: QuotaLimits | None = None) -> LimitTable:
    return LimitTable({Scope.TENANT: tenant or QuotaLimits(), Scope.USER: user or QuotaLimits()})


def test_calls_at_once_are_limited_for_the_tenant_and_for_each_user() -> None:
    quotas = CallQuotas(limits(QuotaLimits(calls=2), QuotaLimits(calls=1)))
    with quotas.counted([ACME, ANN]):
        with pytest.raises(QuotaExceeded) as over, quotas.counted([ACME, ANN]):
            pass
        assert (over.value.limit, over.value.scope) == (Limit.CALLS, Scope.USER)
        assert "USER_MAX_CALLS" in str(over.value)
        with quotas.counted([ACME, BOB]):
            with pytest.raises(QuotaExceeded) as over, quotas.counted([ACME]):
                pass
            assert over.value.scope is Scope.TENANT
    assert quotas.tenants == {}
    with quotas.counted([ACME, ANN]):
        pass


def test_calls_per_minute_end_with_the_minute_and_a_refused_call_costs_nothing() -> None:
    clock = Hands()
    quotas = CallQuotas(limits(QuotaLimits(per_minute=3)), clock)
    for _ in range(3):
        with quotas.counted([ACME]):
            pass
    for _ in range(5):
        with pytest.raises(QuotaExceeded) as over, quotas.counted([ACME]):
            pass
    assert over.value.limit is Limit.RATE
    assert over.value.seconds == 60
    assert "Try again in 60 seconds" in str(over.value)
    clock.time += 60
    with quotas.counted([ACME]):
        pass


def test_many_names_of_users_do_not_take_the_counter_of_their_tenant_away() -> None:
    quotas = CallQuotas(limits(QuotaLimits(per_minute=25_000), QuotaLimits(per_minute=1)))
    for number in range(25_000):
        with quotas.counted([ACME, Subject(Scope.USER, "acme", f"user-{number}")]):
            pass
    with pytest.raises(QuotaExceeded) as over, quotas.counted([ACME, Subject(Scope.USER, "acme", "one-more")]):
        pass
    assert over.value.scope is Scope.TENANT


def test_another_tenant_has_limits_of_its_own() -> None:
    quotas = CallQuotas(limits(QuotaLimits(per_minute=1, calls=1)))
    with quotas.counted([ACME]), quotas.counted([Subject(Scope.TENANT, "other")]):
        pass


def moment(boot: str = "b", uptime: float = 0.0, wall: float = 0.0) -> Callable[[], Moment]:
    return lambda: Moment(boot, uptime, wall)


async def test_what_was_used_outlives_the_service(tmp_path: Path) -> None:
    clock = Hands()
    first = DailyUsage(tmp_path / "q", clock=clock, now=moment(uptime=100))
    await asyncio.to_thread(first.open)
    await first.add(ACME, cpu_seconds=7.5, egress_bytes=1000)
    await first.add(ANN, cpu_seconds=2.5)
    clock.time += 3600
    await first.save()
    again = DailyUsage(tmp_path / "q", clock=clock, now=moment(uptime=100 + 7200))
    await asyncio.to_thread(again.open)
    use = await again.of(ACME)
    assert (use.cpu_seconds, use.egress_bytes) == (7.5, 1000)
    assert again.left(use) == pytest.approx(DAY - 3600 - 7200)
    assert (await again.of(ANN)).cpu_seconds == 2.5
    assert (await again.of(BOB)).cpu_seconds == 0


async def test_a_look_at_very_many_users_lets_others_have_their_turns(tmp_path: Path) -> None:
    usage, turns = DailyUsage(tmp_path / "q", clock=Hands(), now=moment()), 0
    usage._kept.update({Subject(Scope.USER, "acme", str(number)): DayUse() for number in range(10_000)})
    look = asyncio.ensure_future(usage.totals())
    while not look.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await look) == 10_000
    assert turns > 10


async def test_a_day_that_is_over_is_forgotten_and_its_record_removed(tmp_path: Path) -> None:
    clock = Hands()
    usage = DailyUsage(tmp_path / "q", clock=clock, now=moment())
    await asyncio.to_thread(usage.open)
    await usage.add(ACME, cpu_seconds=7.5)
    await usage.save()
    clock.time += DAY
    assert (await usage.of(ACME)).cpu_seconds == 0
    later = DailyUsage(tmp_path / "q", now=moment(uptime=DAY))
    await asyncio.to_thread(later.open)
    assert list((tmp_path / "q").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cpu":1}', b'{"cpu":-1,"egress":0}', b"\xff" * 9000])
async def test_a_record_that_cannot_be_read_is_set_aside(tmp_path: Path, content: bytes) -> None:
    usage = DailyUsage(tmp_path / "q", now=moment())
    await asyncio.to_thread(usage.open)
    await usage.add(ACME, cpu_seconds=1)
    await usage.save()
    (file,) = (tmp_path / "q").iterdir()
    file.write_bytes(content)
    again = DailyUsage(tmp_path / "q", now=moment())
    await asyncio.to_thread(again.open)
    assert (await again.of(ACME)).cpu_seconds == 0
    (aside,) = (tmp_path / "q").iterdir()
    assert ".unreadable-" in aside.name
    assert aside.read_bytes() == content


class Host:
    """Sandboxes that are up, as the queue of starts sees them."""

    def __init__(self, tenant_most: int = 0, total: int = 0, user_most: int = 0, patience: float = 30) -> None:
        self.up: dict[str, str] = {}
        self.owners = ChatOwners()
        self.order: list[str] = []
        self.queue = StartQueue(
            limits(QuotaLimits(sandboxes=tenant_most), QuotaLimits(sandboxes=user_most)),
            total,
            patience=patience,
            running=lambda: list(self.up.items()),
            owners=self.owners.of,
        )

    async def start(self, chat: Chat, user: str = "") -> None:
        self.owners.note(chat, subjects_of(chat, user))
        async with self.queue.admitted(chat):
            self.up[chat.digest] = chat.tenant
            self.order.append(f"{chat.tenant}/{chat.id}")

    def stop(self, chat: Chat) -> None:
        del self.up[chat.digest]


async def waiting(queue: StartQueue, count: int) -> None:
    async with asyncio.timeout(30):
        while len(queue) != count:
            await asyncio.sleep(0)


async def test_a_start_over_the_limit_waits_until_another_sandbox_stops() -> None:
    host, told = Host(tenant_most=1), list[str]()
    await host.start(Chat("a", "acme"))
    with host.queue.followed(Chat("b", "acme"), told.append):
        task = asyncio.ensure_future(host.start(Chat("b", "acme")))
        await waiting(host.queue, 1)
        assert host.queue.position(Chat("b", "acme")) == 1
        await host.start(Chat("a", "other"))
        host.stop(Chat("a", "acme"))
        await task
    assert told[0] == "Waiting for a sandbox: number 1 of the queue.\n"
    assert host.order[-1] == "acme/b"
    assert len(host.queue) == 0
    await host.queue.close()


async def test_a_position_is_told_when_it_changes_and_not_again() -> None:
    host, told = Host(total=1), list[str]()
    await host.start(Chat("a", "acme"))
    chats = [Chat(name, "acme") for name in "bcd"]
    with host.queue.followed(chats[2], told.append):
        tasks = [asyncio.ensure_future(host.start(chat)) for chat in chats]
        await waiting(host.queue, 3)
        for _ in range(5):
            host.queue._dispatch()
        tasks[0].cancel()
        await waiting(host.queue, 2)
        await asyncio.sleep(0)
    assert told == [f"Waiting for a sandbox: number {number} of the queue.\n" for number in (3, 2)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await host.queue.close()


async def test_a_long_queue_that_many_follow_does_not_hold_up_the_service() -> None:
    host, told = Host(total=1), list[str]()
    await host.start(Chat("a", "acme"))
    chats = [Chat(f"c{number}", f"tenant {number % 3}") for number in range(500)]
    host.queue._waiting = [start_queue._Waiter(chat, ()) for chat in chats]
    with ExitStack() as stack:
        for chat in chats:
            stack.enter_context(host.queue.followed(chat, told.append))
        assert min(seconds_of(host.queue._dispatch) for _ in range(5)) < 0.015
    assert len(told) == 500
    assert [host.queue.position(chat) for chat in chats[::50]] == [1 + n - n % 3 for n in range(0, 500, 50)]


def seconds_of(work: Callable[[], None]) -> float:
    """Of a processor."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


async def test_the_queue_is_fair_between_tenants() -> None:
    host = Host(total=2)
    await host.start(Chat("a", "flood"))
    await host.start(Chat("b", "flood"))
    tasks = [asyncio.ensure_future(host.start(Chat(f"c{number}", "flood"))) for number in range(20)]
    await waiting(host.queue, 20)
    late = asyncio.ensure_future(host.start(Chat("a", "late")))
    await waiting(host.queue, 21)
    assert host.queue.position(Chat("a", "late")) == 1
    assert host.queue.position(Chat("c19", "flood")) == 21
    host.stop(Chat("a", "flood"))
    await late
    assert host.order[-1] == "late/a"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(host.queue) == 0
    await host.queue.close()


async def test_a_start_that_waits_too_long_is_told_which_limit_and_its_position() -> None:
    host = Host(user_most=1, patience=0.05)
    await host.start(Chat("a", "acme"), "ann")
    await host.start(Chat("b", "acme"), "bob")
    with pytest.raises(StartRefused, match=r"USER_MAX_SANDBOXES.*number 1.*try again in 10 seconds"):
        await host.start(Chat("c", "acme"), "ann")
    host.stop(Chat("a", "acme"))
    await host.start(Chat("c", "acme"), "ann")
    await host.queue.close()


async def test_the_queue_is_bounded() -> None:
    host = Host(tenant_most=1)
    await host.start(Chat("a", "acme"))
    tasks = [asyncio.ensure_future(host.start(Chat(f"c{number}", "acme"))) for number in range(200)]
    await waiting(host.queue, 200)
    with pytest.raises(StartRefused, match="The queue of starts is full"):
        await host.start(Chat("one-more", "acme"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await host.queue.close()


async def test_starts_at_once_do_not_pass_the_limit() -> None:
    host = Host(tenant_most=3, patience=0.05)
    done = await asyncio.gather(
        *(host.start(Chat(f"c{number}", "acme")) for number in range(10)), return_exceptions=True
    )
    assert len(host.up) == 3
    assert sum(isinstance(error, StartRefused) for error in done) == 7
    await host.queue.close()


async def test_a_host_short_of_memory_refuses_who_is_busy_and_lets_others_in(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    shedding = LoadShedding(100 << 10, 0, lambda: 0.0, file)
    await shedding.look()
    with pytest.raises(Overloaded) as refused:
        shedding.require("flood", {"flood": 10, "other": 1})
    assert (refused.value.reason, refused.value.seconds) == ("memory", 5)
    shedding.require("other", {"flood": 10, "other": 1})
    shedding.require("third", {"flood": 10, "other": 1})
    with pytest.raises(Overloaded):
        shedding.require("alone", {"alone": 1})
    shedding.require("alone", {"other": 1})
    file.write_text("MemAvailable:    500 kB\n")
    await shedding.look()
    shedding.require("flood", {"flood": 10})


async def test_a_late_loop_refuses_and_a_memory_that_cannot_be_read_does_not(tmp_path: Path) -> None:
    late = 2.0
    shedding = LoadShedding(1 << 60, 1.0, lambda: late, tmp_path / "none")
    await shedding.look()
    with pytest.raises(Overloaded, match="more to do than it can"):
        shedding.require("a", {"a": 1})
    late = 0.5
    shedding.require("a", {"a": 1})


class Blocks:
    spent_tenants: Sequence[str] = ()
    spent_chats: Sequence[str] = ()


async def test_egress_over_the_day_blocks_the_tenant_or_the_chats_of_the_user(fleet: Fleet, tmp_path: Path) -> None:
    chosen = load(driver="memory", data_dir=tmp_path, tenant_egress_mb_per_day=2, user_egress_mb_per_day=1)
    metrics, blocks, mib = Metrics(), Blocks(), 1 << 20
    chat = Chat("mine", "acme")
    quotas = Quotas(chosen, metrics, LoopLag(lambda seconds: None), blocks)
    async with fleet.lease(chat), quotas.running(fleet):
        async with quotas.call(chat, "ann"):
            quotas.take(EgressReport(chat, EgressTally(sent=mib)))
            await quotas.count_egress()
        assert (blocks.spent_tenants, blocks.spent_chats) == ([], [chat.digest])
        with pytest.raises(QuotaExceeded, match=r"USER_EGRESS_MB_PER_DAY.*24 hours"):
            async with quotas.call(chat, "ann"):
                pass
        async with quotas.call(chat, "bob"):
            quotas.take(EgressReport(chat, EgressTally(received=mib)))
            await quotas.count_egress()
        assert blocks.spent_tenants == ["acme"]
    again = Quotas(chosen, Metrics(), LoopLag(lambda seconds: None), Blocks())
    async with again.running(fleet):
        with pytest.raises(QuotaExceeded, match="TENANT_EGRESS_MB_PER_DAY"):
            async with again.call(Chat("new", "acme"), None):
                pass
        async with again.call(Chat("new", "other"), "ann"):
            pass


async def test_disk_over_the_limit_refuses_uploads_and_new_chats_only(fleet: Fleet, tmp_path: Path) -> None:
    chosen = load(driver="memory", data_dir=tmp_path, tenant_disk_mb=1)
    chat = Chat("holds", "disks")
    quotas = Quotas(chosen, Metrics(), LoopLag(lambda seconds: None), Blocks())
    async with fleet.lease(chat), quotas.running(fleet):
        async with quotas.call(chat, None, writes=True):
            await quotas.sample(fleet)
        with pytest.raises(QuotaExceeded, match="TENANT_DISK_MB"):
            async with quotas.call(chat, None, writes=True):
                pass
        with pytest.raises(QuotaExceeded, match="TENANT_DISK_MB"):
            async with quotas.call(Chat("one-more", "disks"), None):
                pass
        async with quotas.call(chat, None):
            pass
    again = Quotas(chosen, Metrics(), LoopLag(lambda seconds: None), Blocks())
    async with again.running(fleet):
        with pytest.raises(QuotaExceeded, match="TENANT_DISK_MB"):
            async with again.call(Chat("one-more", "disks"), None):
                pass
        again.forget(chat)
        async with again.call(chat, None, writes=True):
            pass


CHAT_A, CHAT_B = "a" * 16, "b" * 16


async def test_disk_use_is_kept_for_the_chats_that_there_are(tmp_path: Path) -> None:
    first = DiskUsage(tmp_path)
    first.note(CHAT_A, [ACME, ANN], 100)
    first.note(CHAT_B, [ACME], 10)
    first.note(CHAT_A, [ACME, BOB], 50)
    assert [first.used(each) for each in (ACME, ANN, BOB)] == [60, 0, 50]
    await first.save()
    again = DiskUsage(tmp_path)
    again.open()
    assert [again.used(each) for each in (ACME, ANN, BOB)] == [60, 0, 50]
    again.keep_only({CHAT_B})
    assert [again.used(each) for each in (ACME, BOB)] == [10, 0]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"chats":[]}', b'{"chats":{"a":[-1,"b"]}}', b'{"chats":{"a":1}}']
)
def test_a_record_of_disk_use_that_cannot_be_read_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "disk.json").write_bytes(content)
    usage = DiskUsage(tmp_path)
    usage.open()
    assert usage.used(ACME) == 0
    (aside,) = tmp_path.iterdir()
    assert aside.read_bytes() == content
    assert ".bad-" in aside.name
