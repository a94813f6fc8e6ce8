"""The header by which members of a service know each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core import hop
from cubicle.core.hop import MAX_AGE, BadHop, Hop, SeenHops, opened, signed

KEY, OTHER = b"k" * 32, b"o" * 32
HOP = Hop("1-a", "2-b", "https", ("2001:db8::1", 443))


def test_it_says_what_was_signed() -> None:
    value = signed(KEY, HOP, "POST", b"/mcp?x=1", 1000.0)
    assert opened([OTHER, KEY], value, "POST", b"/mcp?x=1", "2-b", 1000.0 + MAX_AGE) == HOP
    nobody = Hop("1-a", "2-b", "http", None)
    assert opened([KEY], signed(KEY, nobody, "WS", b"/", 5.0), "WS", b"/", "2-b", 5.0) == nobody


@pytest.mark.parametrize(
    ("keys", "method", "target", "to", "now"),
    [
        ([OTHER], "POST", b"/mcp", "2-b", 1000.0),
        ([], "POST", b"/mcp", "2-b", 1000.0),
        ([KEY], "GET", b"/mcp", "2-b", 1000.0),
        ([KEY], "POST", b"/mcp/", "2-b", 1000.0),
        ([KEY], "POST", b"/mcp", "1-a", 1000.0),
        ([KEY], "POST", b"/mcp", "2-b", 1000.0 + MAX_AGE + 1),
        ([KEY], "POST", b"/mcp", "2-b", 1000.0 - MAX_AGE - 1),
    ],
)
def test_it_is_good_for_one_request_and_a_short_while(
    keys: list[bytes], method: str, target: bytes, to: str, now: float
) -> None:
    with pytest.raises(BadHop):
        opened(keys, signed(KEY, HOP, "POST", b"/mcp", 1000.0), method, target, to, now)


def test_each_is_good_once_for_as_long_as_it_works() -> None:
    seen, one, other = SeenHops(), Hop("1-a", "2-b", "http", None), Hop("1-a", "2-b", "http", None)
    assert seen.is_new(one, 100.0)
    assert not seen.is_new(one, 100.0)
    assert seen.is_new(other, 100.0)
    assert not seen.is_new(one, 100.0 + 2 * MAX_AGE)


def test_those_that_work_no_more_and_the_first_of_very_many_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop, "_MAX_SEEN", 10)
    seen = SeenHops()
    for number in range(100):
        assert seen.is_new(Hop("1-a", "2-b", "http", None), float(number))
        assert len(seen._ids) == len(seen._by_time) <= 10
    assert seen.is_new(Hop("1-a", "2-b", "http", None), 1000.0)
    assert len(seen._ids) == len(seen._by_time) == 1


@given(st.binary(max_size=4096))
def test_nothing_else_is_one(value: bytes) -> None:
    with pytest.raises(BadHop):
        opened([KEY], value, "GET", b"/", "2-b", 0.0)
