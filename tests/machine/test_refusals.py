"""What is kept of refused requests."""

from __future__ import annotations

import pytest

from cubicle.egress.policy import BadTarget, Target
from cubicle.machine.refusals import Refusal, Refusals


def refusal(number: int, note: str = "note") -> Refusal:
    return Refusal(f"host{number}.example:443", f"{note} {number}", f"shown {number}")


def test_the_last_one_of_a_target_is_found_and_of_many_targets_the_newest() -> None:
    refusals = Refusals()
    for number in range(1000):
        refusals.add(refusal(number))
    refusals.add(refusal(999, "again"))
    assert refusals.latest("host999.example:443") == refusal(999, "again")
    assert refusals.latest("host998.example:443") == refusal(998)
    assert refusals.latest("host1.example:443") is None


def test_who_listens_hears_the_first_few_different_notes() -> None:
    refusals = Refusals()
    refusals.add(refusal(0))
    with refusals.heard() as heard:
        for number in (1, 1, 2, 3, 4):
            refusals.add(refusal(number))
    refusals.add(refusal(5))
    assert heard == ["note 1", "note 2", "note 3"]


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://Example.org/a?b#c", "example.org:443"),
        ("http://example.org:8080/", "example.org:8080"),
        ("http://[2001:db8::1]/", "[2001:db8::1]:80"),
        *((bad, None) for bad in ("", "file:///etc/passwd", "https://", "http://a:99999/", "http://[", "https://a b/")),
    ],
)
def test_where_a_browser_goes_for_an_address(url: str, target: str | None) -> None:
    if target is None:
        with pytest.raises(BadTarget):
            Target.of(url)
    else:
        assert str(Target.of(url)) == target
