"""What several workers count of one tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubicle.agents.budget import BudgetLimits, BudgetStore, OutOfBudget
from cubicle.agents.pricing import TokenUsage
from cubicle.core.chat import Chat
from cubicle.quotas.daily_usage import DailyUsage
from cubicle.quotas.disk_usage import DiskUsage
from cubicle.quotas.limits import LimitTable, QuotaLimits, Scope, Subject

TENANT = Subject(Scope.TENANT, "acme")
CHAT = Chat("chat", "acme")


async def test_a_day_is_the_sum_of_what_all_wrote_down(tmp_path: Path) -> None:
    first, second = tmp_path / "quotas", tmp_path / "quotas-2"
    now = 1000.0
    one = DailyUsage(first, others=[second], clock=lambda: now)
    two = DailyUsage(second, others=[first], clock=lambda: now)
    one.open()
    two.open()
    await one.add(TENANT, cpu_seconds=3, egress_bytes=10)
    await two.add(TENANT, cpu_seconds=4, egress_bytes=20)
    await one.save()
    await two.save()
    use = await two.total(TENANT)
    assert (use.cpu_seconds, use.egress_bytes) == (7, 30)
    assert [(subject, use.egress_bytes) for subject, use in await one.totals()] == [(TENANT, 30)]
    await one.add(TENANT, cpu_seconds=1)
    await one.save()
    now += 60
    assert (await two.total(TENANT)).cpu_seconds == 8
    assert (await two.of(TENANT)).cpu_seconds == 4  # each writes down its own
    (first / two._path(TENANT).name).write_bytes(b"garbage")
    now += 60
    assert (await two.total(TENANT)).cpu_seconds == 4


async def test_disks_are_the_sum_of_what_all_saw(tmp_path: Path) -> None:
    first, second = tmp_path / "quotas", tmp_path / "quotas-2"
    one, two = DiskUsage(first, [second]), DiskUsage(second, [first])
    for folder in (first, second):
        folder.mkdir()
    one.note("a" * 32, [TENANT], 100)
    two.note("b" * 32, [TENANT], 50)
    await one.save()
    await two.look()
    assert (one.used(TENANT), two.used(TENANT)) == (100, 150)
    (first / "disk.json").write_bytes(b"garbage")
    await two.look()
    assert two.used(TENANT) == 150
    (first / "disk.json").unlink()
    await two.look()
    assert two.used(TENANT) == 50


async def test_a_budget_is_spent_by_all_together(tmp_path: Path) -> None:
    limits = BudgetLimits(requests=2)

    def store(own: str, other: str) -> BudgetStore:
        made = BudgetStore(
            tmp_path / own, BudgetLimits(), tmp_path / f"{own}-t", limits, others=([tmp_path / f"{other}-t"], ())
        )
        made.open()
        return made

    one, two = store("one", "two"), store("two", "one")
    for each in (one, two):
        await each.begin(CHAT)
        each.count(CHAT, "", TokenUsage())
        await each.save(CHAT)
    with pytest.raises(OutOfBudget):
        await one.begin(CHAT)
    assert (await two.spent_by("acme")).requests == 2


def test_calls_at_once_are_divided() -> None:
    table = LimitTable({Scope.TENANT: QuotaLimits(calls=5, per_minute=100, disk_bytes=9)}, share=2)
    assert table.of(TENANT) == QuotaLimits(calls=3, per_minute=50, disk_bytes=9)
    assert LimitTable({Scope.TENANT: QuotaLimits()}, share=4).of(TENANT) == QuotaLimits()
