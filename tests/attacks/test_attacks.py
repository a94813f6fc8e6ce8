"""Another tenant's calls go on as if nothing were, whatever one does.

`CUBICLE_LONG=1` runs all attacks, each for ten seconds; without it those that need no key run for one.
Every run writes its table to the standard output (`pytest -s`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.attacks import from_sandbox, table, unauthenticated, with_key, with_link  # noqa: F401
from tests.attacks.harness import MAX_GROWTH_MB, Ground, ground

LONG = bool(os.environ.get("CUBICLE_LONG"))
SECONDS = 10.0 if LONG else 1.0
FLOOR = 0.1
"""Seconds of a p99 that are fine however quick the service is when nobody attacks."""

pytestmark = [pytest.mark.anyio, pytest.mark.serial, pytest.mark.timeout(7200 if LONG else 300)]


@pytest.fixture(scope="module")
async def attacked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Ground, float, float]]:
    """One service that has to bear them all, and how quick it is when idle."""
    async with ground(tmp_path_factory.mktemp("attacks"), SECONDS) as here:
        await here.idle(1)  # the first calls of a new process are slower
        idle = await here.idle(3)
        print(f"\n{idle.row('idle')}")
        yield here, idle.p99, idle.health_p99


def _row(attack: table.Attack) -> object:
    """Everybody's attacks always run; those that need a key, a link or a sandbox want a machine to themselves."""
    always = attack.run.__module__ == unauthenticated.__name__
    return pytest.param(attack.name, marks=[] if always else [pytest.mark.long])


@pytest.mark.parametrize("name", [_row(attack) for attack in table.ATTACKS.values()])
async def test_others_do_not_notice(attacked: tuple[Ground, float, float], name: str) -> None:
    here, idle, idle_health = attacked
    attack = table.ATTACKS[name]
    found = await here.run(attack)
    print(found.row(name))
    assert not found.failed
    assert not found.long_stalls, f"the service's event loop was held up: {found.stalls}"
    slack = 2 * found.noise  # a call needs several processes, one after the other
    assert found.p99 < max(10 * idle, FLOOR) + slack, (
        f"another tenant's calls took {found.p99:.3f} s, idle {idle:.3f} s"
    )
    assert found.health_p99 < max(10 * idle_health, FLOOR) + slack, f"/health took {found.health_p99:.3f} s"
    assert found.rss_after < found.rss_before + MAX_GROWTH_MB, f"{found.rss_before:.0f} -> {found.rss_after:.0f} MB"
    assert attack.gets & found.seen.keys(), f"the attacker got {found.seen}"
    assert found.seen.keys() <= attack.gets | attack.also, f"the attacker got {found.seen}"


def test_there_are_at_least_sixty() -> None:
    assert len(table.ATTACKS) >= 60
    assert all(attack.run.__module__.startswith("tests.attacks.") for attack in table.ATTACKS.values())
