"""How many blank sandboxes are wanted, and which are kept for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubicle.sandbox import free_memory
from cubicle.sandbox.pool_demand import HALF_LIFE, WINDOW, PoolDemand


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def come(demand: PoolDemand, tenant: str, count: int) -> None:
    for _ in range(count):
        demand.came(tenant)


def test_wanted_are_as_many_as_came_at_once(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    assert demand.wanted == 2
    come(demand, "a", 30)
    assert demand.wanted == 30
    time.now += WINDOW / 2
    come(demand, "b", 12)
    assert demand.wanted == 42, "all tenants together, within some seconds"


def test_one_now_and_then_wants_no_more_than_the_least(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    for _ in range(500):
        come(demand, "a", 1)
        time.now += WINDOW
    assert demand.wanted == 2


def test_a_steady_stream_wants_what_comes_within_the_window(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    for _ in range(2000):
        come(demand, "a", 1)
        time.now += 0.5
    assert demand.wanted == pytest.approx(WINDOW * 2, abs=1)


def test_it_is_less_with_time_and_the_least_in_the_end(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    come(demand, "a", 80)
    sizes = []
    for _ in range(12):
        time.now += HALF_LIFE / 2
        sizes.append(demand.wanted)
    assert sizes[:4] == [57, 40, 28, 20]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 2
    come(demand, "a", 10)
    assert demand.wanted == 10


def test_a_flood_wants_no_more_than_the_most_and_is_forgotten(time: Time) -> None:
    demand = PoolDemand(2, 20, time)
    for number in range(5000):
        demand.came(f"tenant-{number}")
    assert demand.wanted == 20
    assert len(demand._tenants) == 1000
    assert len(demand._all._came) == 20


@pytest.mark.parametrize(("least", "most", "wanted"), [(0, 100, 0), (5, 2, 5), (2, 0, 2)])
def test_the_bounds(time: Time, least: int, most: int, wanted: int) -> None:
    demand = PoolDemand(least, most, time)
    come(demand, "a", 50)
    assert demand.wanted == wanted


def test_a_single_tenant_may_have_all(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    come(demand, "a", 100)
    assert demand.kept_from("a") == 0


def taken(demand: PoolDemand, ready: int, tenant: str) -> bool:
    demand.came(tenant)
    return ready > demand.kept_from(tenant)


def test_a_flood_leaves_others_what_they_had_before(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    come(demand, "quiet", 5)
    come(demand, "flood", 50)
    time.now += WINDOW + 1
    ready = 50
    for _ in range(200):
        ready -= taken(demand, ready, "flood")
    assert ready == 6, "five that the quiet one may want, and one for who was not seen"
    for _ in range(5):
        assert taken(demand, ready, "quiet")
        ready -= 1
    assert not taken(demand, ready, "quiet")
    assert taken(demand, ready, "new")


def test_who_floods_all_the_time_keeps_nothing_from_others(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    come(demand, "flood", 1000)
    time.now += WINDOW + 1
    ready = 40
    for _ in range(20):
        assert taken(demand, ready, "flood") or ready == 2
        assert taken(demand, ready, "quiet") or ready == 2
        ready -= 2


def test_the_first_of_a_tenant_gets_the_last_one(time: Time) -> None:
    demand = PoolDemand(2, 100, time)
    come(demand, "a", 30)
    assert taken(demand, 1, "b")
    assert not taken(demand, 1, "a")


def write_memory(folder: Path, total: int, available: int) -> Path:
    file = folder / "meminfo"
    file.write_text(f"MemTotal:       {total} kB\nMemFree:   1 kB\nMemAvailable:   {available} kB\n")
    return file


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({}, 8000 * 1024, 6000 * 1024),
        ({"memory.max": "max\n"}, 8000 * 1024, 6000 * 1024),
        (
            {"memory.max": "4096000\n", "memory.current": "4000000\n", "memory.stat": "anon 1\ninactive_file 1000\n"},
            4096000,
            97000,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "4096000\n",
                "memory/memory.usage_in_bytes": "4000000\n",
                "memory/memory.stat": "inactive_file 5\ntotal_inactive_file 1000\n",
            },
            4096000,
            97000,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "4000000\n",
                "memory/memory.stat": "total_inactive_file 1000\n",
            },
            8000 * 1024,
            6000 * 1024,
        ),
    ],
)
def test_memory_is_the_tighter_of_host_and_container(
    tmp_path: Path, files: dict[str, str], total: int, available: int
) -> None:
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    found = free_memory.measure(write_memory(tmp_path, 8000, 6000), tmp_path / "cgroup")
    assert found == free_memory.FreeMemory(total, available)


def test_memory_of_this_host() -> None:
    found = free_memory.measure()
    assert 0 < found.available < found.total
    assert 0 < found.share < 1
