"""What agents have spent is remembered for as long as their chat is there, whatever the date says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cubicle.agents.budget import BudgetLimits, BudgetStore, OutOfBudget, Spending, SpentBudget
from cubicle.agents.pricing import TokenUsage
from cubicle.core.chat import Chat

HERE, GONE = Chat("here"), Chat("gone")
DAY = 86400.0


@pytest.mark.parametrize(
    "stamp", [0.0, time.time() - 400 * DAY, time.time() + 400 * DAY], ids=["1970", "past", "future"]
)
async def test_the_spending_of_a_chat_that_exists_is_kept_however_old_it_seems(tmp_path: Path, stamp: float) -> None:
    limits = BudgetLimits(requests=1)
    before = BudgetStore(tmp_path, limits)
    before.open()
    for chat in (HERE, GONE):
        await before.begin(chat)
        await before.save(chat)
        os.utime(tmp_path / chat.digest, (stamp, stamp))
    await before.forget(GONE)
    after = BudgetStore(tmp_path, limits)
    after.open()
    with pytest.raises(OutOfBudget):
        await after.begin(HERE)
    assert not (tmp_path / GONE.digest).exists()


def purses_of(folder: Path, **limits: float) -> BudgetStore:
    purses = BudgetStore(folder / "chats", BudgetLimits(), folder / "tenants", BudgetLimits(**limits))  # type: ignore[arg-type]
    purses.open()
    return purses


async def call(purses: BudgetStore, chat: Chat, tokens: int = 10) -> None:
    await purses.begin(chat)
    purses.count(chat, "claude-sonnet-5-5", TokenUsage(input=tokens))
    await purses.save(chat)


async def test_the_chats_of_a_tenant_have_one_budget_and_those_of_another_their_own(tmp_path: Path) -> None:
    purses = purses_of(tmp_path, requests=2, days=30)
    await call(purses, Chat("one", "acme"))
    await call(purses, Chat("two", "acme"))
    with pytest.raises(
        OutOfBudget, match=r"tenant acme .* 2 model calls .*TENANT_MAX_REQUESTS.* begins anew on 20\d\d-"
    ):
        await purses.begin(Chat("three", "acme"))
    await call(purses, Chat("one", "other"))
    assert (await purses.spent_by("other")).requests == 1
    assert (await purses.spent_by("acme")).tokens == 20


async def test_the_budget_of_a_tenant_outlives_restarts_and_removed_chats(tmp_path: Path) -> None:
    purses = purses_of(tmp_path, tokens=15)
    await call(purses, Chat("one", "acme"))
    await purses.begin(Chat("two", "acme"))
    await purses.forget(Chat("one", "acme"))
    await purses.forget(Chat("two", "acme"))
    purses.count(Chat("two", "acme"), "claude-sonnet-5-5", TokenUsage(input=10))  # removed while the call was under way
    await purses.save(Chat("two", "acme"))
    after = purses_of(tmp_path, tokens=15)
    assert (await after.spent_by("acme")).tokens == 20
    with pytest.raises(OutOfBudget, match="SUB_AGENT_TENANT_MAX_TOKENS"):
        await after.begin(Chat("new", "acme"))


async def test_a_tenants_budget_begins_anew_after_its_days_and_not_before(tmp_path: Path) -> None:
    now = 1_000_000_000.0
    book = Spending(tmp_path, 30, lambda: now)
    book.open()
    assert await book.of("acme") == SpentBudget(since=now)
    book.add("acme", requests=5)
    await book.save("acme")
    for later, requests in ((29.9 * DAY, 5), (-400 * DAY, 5), (30 * DAY, 0)):
        at = now + later
        again = Spending(tmp_path, 30, lambda at=at: at)  # type: ignore[misc]
        assert (await again.of("acme")).requests == requests


async def test_what_was_counted_without_an_end_gets_one_from_now_on(tmp_path: Path) -> None:
    for_ever = Spending(tmp_path)
    for_ever.open()
    await for_ever.of("acme")
    for_ever.add("acme", requests=5)
    await for_ever.save("acme")
    assert await Spending(tmp_path, 30, lambda: 5.0).of("acme") == SpentBudget(requests=5, since=5.0)


async def test_the_chats_of_a_user_have_one_budget_that_a_restart_does_not_renew(tmp_path: Path) -> None:
    users = {Chat("one", "acme"): "ann", Chat("two", "acme"): "ann", Chat("three", "acme"): "bob"}

    def opened() -> BudgetStore:
        limits = BudgetLimits(dollars=0.001, days=30)
        store = BudgetStore(tmp_path / "chats", BudgetLimits(), users_folder=tmp_path / "users", user_limits=limits)
        store.user_of = lambda chat: users.get(chat, "")
        store.open()
        return store

    await call(opened(), Chat("one", "acme"), tokens=1_000_000)
    store = opened()
    with pytest.raises(OutOfBudget, match=r"this user is spent.*SUB_AGENT_USER_BUDGET_USD.* begins anew on 20"):
        await store.begin(Chat("two", "acme"))
    await store.begin(Chat("three", "acme"))
    await store.begin(Chat("one", "other"))
    assert "ann" not in str([path.name for path in (tmp_path / "users").iterdir()])
