"""Wrong keys are limited per address and per key, in bounded memory, and lock nobody else out."""

from __future__ import annotations

import time

import pytest

from cubicle.chat import key_attempts
from cubicle.chat.key_attempts import BoundedCounters, KeyAttempts, TooManyAttempts, network_of
from cubicle.core.api_keys import ApiKey
from cubicle.core.keys import KeyRing

RING = KeyRing({"the-right-key": "main", "another-right-key": "acme"})
HERE, THERE = "192.0.2.1", "198.51.100.7"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(clock: Clock) -> KeyAttempts:
    return KeyAttempts(RING, 10, clock)


def tenant(found: ApiKey | None) -> str | None:
    return None if found is None else found.tenant


def wrong(keys: KeyAttempts, times: int, address: str = HERE, start: int = 0) -> int:
    """How many of these different wrong keys were looked at."""
    for number in range(start, start + times):
        try:
            assert keys.opens(f"wrong-key-{number}", address) is None
        except TooManyAttempts:
            return number - start
    return times


def wait_of(keys: KeyAttempts, key: str = "the-right-key", address: str = HERE) -> int:
    with pytest.raises(TooManyAttempts) as refused:
        keys.opens(key, address)
    return refused.value.seconds


def test_an_address_may_err_ten_times_a_minute(keys: KeyAttempts, clock: Clock) -> None:
    assert wrong(keys, 20) == 10
    clock.now += 15
    assert wait_of(keys) == 45
    clock.now += 45
    assert tenant(keys.opens("the-right-key", HERE)) == "main"


def test_who_goes_on_waits_longer_and_longer(keys: KeyAttempts, clock: Clock) -> None:
    waits = []
    for round_ in range(7):
        assert wrong(keys, 11, start=round_ * 100) == (10 if round_ < 6 else 0)
        waits.append(wait_of(keys))
        clock.now += waits[-1] if round_ < 5 else 0
    assert waits[:2] == [60, 60]
    assert 400 < waits[2] <= 600
    assert max(waits) > 2000
    clock.now += 3600
    assert tenant(keys.opens("the-right-key", HERE)) == "main"


def test_a_blocked_address_does_not_tell_right_from_wrong(keys: KeyAttempts) -> None:
    wrong(keys, 10)
    assert wait_of(keys, "the-right-key") == wait_of(keys, "one-more-wrong-key")


def test_a_right_key_from_another_address_is_not_locked_out(keys: KeyAttempts) -> None:
    wrong(keys, 1000)
    assert tenant(keys.opens("the-right-key", THERE)) == "main"


def test_a_client_that_was_right_before_is_not_locked_out_by_others_at_its_address(keys: KeyAttempts) -> None:
    assert tenant(keys.opens("the-right-key", HERE)) == "main"
    wrong(keys, 1000)
    assert tenant(keys.opens("the-right-key", HERE)) == "main"
    assert wait_of(keys, "another-right-key") == 60


def test_one_wrong_key_from_many_addresses_is_limited_and_its_neighbours_are_not(keys: KeyAttempts) -> None:
    for number in range(30):
        assert keys.opens("an-old-key", f"192.0.2.{number}") is None
    assert wait_of(keys, "an-old-key", THERE) == 60
    assert keys.opens("another-old-key", THERE) is None
    assert tenant(keys.opens("the-right-key", "192.0.2.5")) == "main"


def test_right_keys_are_not_counted(keys: KeyAttempts) -> None:
    for _ in range(1000):
        assert tenant(keys.opens("the-right-key", HERE)) == "main"
    assert wrong(keys, 20) == 10


def test_no_key_is_no_try(keys: KeyAttempts) -> None:
    for header in (None, "", "Basic dXNlcjpwYXNz", "Bearer", "Bearer a b"):
        for _ in range(20):
            assert keys.shown(header, HERE) is None
    assert tenant(keys.shown("Bearer the-right-key", HERE)) == "main"


def test_without_keys_and_without_a_limit_nothing_is_refused(clock: Clock) -> None:
    assert tenant(KeyAttempts(KeyRing({}), 10, clock).shown("Bearer x", HERE)) == "main"
    assert wrong(KeyAttempts(RING, 0, clock), 500) == 500


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, "other"),
        ("", "other"),
        ("nonsense", "other"),
    ],
)
def test_what_counts_as_one_address(address: str | None, network: str) -> None:
    assert network_of(address) == network


def test_a_flood_of_addresses_takes_bounded_memory_and_little_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_attempts, "_MAX_COUNTERS", 300)
    monkeypatch.setattr(key_attempts, "_MAX_KNOWN", 50)
    keys = KeyAttempts(RING, 10, clock)
    began = time.perf_counter()
    for number in range(5000):
        assert keys.opens(f"wrong-{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}") is None
        keys.opens("the-right-key", f"2001:db8:{number:x}::1")
    assert time.perf_counter() - began < 20
    for counted in (keys._addresses, keys._keys):
        assert isinstance(counted.storage, BoundedCounters)
        assert len(counted.storage) <= 300
    assert len(keys._known) <= 50


def test_a_clock_that_jumps_is_not_asked() -> None:
    assert KeyAttempts(RING, 10)._clock is time.monotonic
