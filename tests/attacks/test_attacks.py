"""Another tenant's calls go on as if nothing were, whatever one does.

Every attack runs for a moment each time: others' calls succeed, the event loop is never held up for long, the attacker
gets its refusal, the memory returns. Latencies are judged over all attacks of one kind together. `CUBICLE_LONG=1` runs
each for ten seconds, and judges each for itself. Every run writes its table to the standard output (`pytest -s`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce
from operator import add
from pathlib import Path
from types import ModuleType

import pytest

from tests.attacks import from_sandbox, table, through_port, unauthenticated, with_key, with_link, with_newer_protocol
from tests.attacks.attacker import LATE, UNFINISHED
from tests.attacks.harness import MAX_GROWTH_MB, Ground, Measured, ground

LONG_SECONDS, SHORT_SECONDS = 10.0, 0.25
SHORT_TIMEOUT = 1.0
AGAIN = 10
"""Times as long the second time: on a busy machine a moment is too short to get as far as the refusal."""
FLOOR = 0.1
"""Seconds of a p99 that are fine however quick the service is when nobody attacks."""
MIN_CALLS = 100
"""With fewer a p99 is but the longest of them: the machine was too busy for the short form to say anything of it."""
KINDS = (unauthenticated, with_key, with_newer_protocol, with_link, through_port, from_sandbox)
OF_KNOWN_TENANTS = ((with_key, with_newer_protocol), (with_link,), (through_port,), (from_sandbox,))
"""Those that are judged together: of a few attacks there are too few calls."""

pytestmark = [pytest.mark.anyio, pytest.mark.serial]


def attacks_of(kind: ModuleType) -> list[table.Attack]:
    return [attack for attack in table.ATTACKS.values() if attack.run.__module__ == kind.__name__]


def named(kind: ModuleType) -> str:
    return kind.__name__.rpartition(".")[2]


async def idle_of(here: Ground, seconds: float) -> Measured:
    await here.idle(seconds / 2)  # the first calls of a new process are slower
    idle = await here.idle(seconds)
    print(f"\n{idle.row('idle')}")
    return idle


def wrong_with(attack: table.Attack, found: Measured, *, cut_short: bool = False) -> list[str]:
    """What holds for one attack however short it is."""
    wrong = [f"{attack.name}: another tenant's call failed: {each}" for each in found.failed]
    if found.long_stalls:
        wrong.append(f"{attack.name}: the service's event loop was held up: {found.stalls}")
    if found.rss_after >= found.rss_before + MAX_GROWTH_MB:
        wrong.append(f"{attack.name}: {found.rss_before:.0f} -> {found.rss_after:.0f} MB")
    unfinished = {UNFINISHED, LATE} & found.seen.keys() if cut_short else set()
    may = attack.gets | attack.also | unfinished
    # Who still sends when the service closes may never read what it was told; in a moment that can happen to all.
    cut_off = cut_short and "closed" in found.seen.keys() & attack.also
    if not found.seen.keys() <= may or not (unfinished or cut_off or attack.gets & found.seen.keys()):
        wrong.append(f"{attack.name}: the attacker got {found.seen}")
    return wrong


def too_slow(found: Measured, idle: Measured) -> list[str]:
    """What holds for as many calls as a percentile needs."""
    slack = 2 * found.noise  # a call needs several processes, one after the other
    wrong = []
    if found.p99 >= max(10 * idle.p99, FLOOR) + slack:
        wrong.append(f"another tenant's calls took {found.p99:.3f} s, idle {idle.p99:.3f} s")
    if found.health_p99 >= max(10 * idle.health_p99, FLOOR) + slack:
        wrong.append(f"/health took {found.health_p99:.3f} s")
    return wrong


@asynccontextmanager
async def short_ground(folder: Path) -> AsyncIterator[tuple[Ground, Measured]]:
    async with ground(folder, SHORT_SECONDS, SHORT_TIMEOUT, short=True) as here:
        yield here, await idle_of(here, 1)


@pytest.fixture(scope="module")
async def known(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Ground, Measured]]:
    """One service for all that a known tenant does."""
    async with short_ground(tmp_path_factory.mktemp("known")) as found:
        yield found


async def moments(here: Ground, idle: Measured, *kinds: ModuleType) -> list[str]:
    """What is wrong with a moment of each attack of these kinds, or with all together."""
    all_found, wrong = [], []
    for attack in (attack for kind in kinds for attack in attacks_of(kind)):
        found = await here.run(attack)
        print(found.row(attack.name))
        if wrong_with(attack, found, cut_short=True):  # what is the service's doing comes again
            found = await here.run(attack, AGAIN)
            print(found.row(attack.name))
        all_found.append(found)
        wrong += wrong_with(attack, found, cut_short=True)
    together = reduce(add, all_found)
    print(together.row(named(kinds[0])))
    return wrong + (too_slow(together, idle) if len(together.bash) >= MIN_CALLS else [])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kinds", OF_KNOWN_TENANTS, ids=lambda kinds: named(kinds[0]))
async def test_others_do_not_notice_a_moment_of_each(known: tuple[Ground, Measured], kinds: list[ModuleType]) -> None:
    assert not await moments(*known, *kinds)


async def test_others_do_not_notice_a_moment_of_each_of_a_stranger(tmp_path: Path) -> None:
    """A service of its own: from the address of the attacks it answers nobody for a while."""
    async with short_ground(tmp_path) as (here, idle):
        assert not await moments(here, idle, unauthenticated)


def test_all_kinds_have_their_moment() -> None:
    assert {unauthenticated, *(kind for kinds in OF_KNOWN_TENANTS for kind in kinds)} == set(KINDS)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS, ids=named)
async def test_others_do_not_notice_ten_seconds_of_each(tmp_path: Path, kind: ModuleType) -> None:
    async with ground(tmp_path, LONG_SECONDS) as here:
        idle = await idle_of(here, 3)
        wrong = []
        for attack in attacks_of(kind):
            found = await here.run(attack)
            print(found.row(attack.name))
            wrong += wrong_with(attack, found) + [f"{attack.name}: {each}" for each in too_slow(found, idle)]
    assert not wrong


def test_there_are_at_least_sixty() -> None:
    assert len(table.ATTACKS) >= 60
    assert all(attack.run.__module__.startswith("tests.attacks.") for attack in table.ATTACKS.values())
