"""Ranges of user ids: each is one sandbox's among all services of the host, whatever happens to those."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from cubicle.drivers.oci import id_ranges
from cubicle.drivers.oci.config import IDS
from cubicle.drivers.oci.id_ranges import COUNT, FIRST_RANGE, IdRanges, NoFreeRange, first_id, is_own
from cubicle.machine.errors import StartFailed

LONG_AGO = 1_000_000_000


@pytest.fixture
def ranges(tmp_path: Path) -> IdRanges:
    return IdRanges(tmp_path / "run/ids")


def test_a_range_is_above_that_of_the_images_and_below_negative_numbers():
    assert first_id(1) == FIRST_RANGE + IDS
    assert first_id(COUNT) + IDS - 1 < 2**31 - 2
    assert not is_own(FIRST_RANGE)
    assert not is_own(0)
    assert is_own(first_id(1))
    assert not is_own(first_id(1) + 1)


def test_sandboxes_that_prefer_the_same_range_get_two(ranges, monkeypatch):
    monkeypatch.setattr(id_ranges, "_preferred", lambda home: COUNT)
    first, second, third = (ranges.claim(Path(f"/data{n}/sandboxes/one")) for n in range(3))
    assert (first, second, third) == (first_id(COUNT), first_id(1), first_id(2))
    for n in (1, 0):
        ranges.release(Path(f"/data{n}/sandboxes/one"))
    assert os.listdir(ranges.folder) == ["2"]


def test_a_sandbox_gets_the_same_range_again(ranges):
    home = Path("/data/sandboxes/one")
    first = ranges.claim(home)
    assert ranges.claim(home) == first  # a start that was cut off had it already
    ranges.release(home)
    assert os.listdir(ranges.folder) == []
    assert ranges.claim(home) == first


def test_only_its_own_range_is_given_back(ranges):
    one, other = Path("/data/sandboxes/one"), Path("/data/sandboxes/other")
    claimed = ranges.claim(one)
    ranges.release(other, claimed)
    ranges.release(other)
    assert len(os.listdir(ranges.folder)) == 1


def test_two_services_at_once_never_share_a_range(ranges):
    found: list[int] = []

    def claim(service: int) -> None:
        found.extend(IdRanges(ranges.folder).claim(Path(f"/data{service}/sandboxes/s{n}")) for n in range(40))

    threads = [threading.Thread(target=claim, args=(service,)) for service in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 160


def test_when_all_are_taken_those_that_nothing_uses_are_given_out_again(ranges, monkeypatch):
    monkeypatch.setattr(id_ranges, "COUNT", 4)
    for number in range(4):
        ranges.claim(Path(f"/gone{number}/sandboxes/one"))
    with pytest.raises(NoFreeRange):
        ranges.claim(Path("/data/sandboxes/one"))  # they were claimed just now: their sandboxes may be starting
    for link in ranges.folder.iterdir():
        os.utime(link, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    monkeypatch.setattr(id_ranges, "_process_owners", lambda: [first_id(1), first_id(2) + 7, first_id(4) + IDS - 1])
    assert ranges.claim(Path("/data/sandboxes/one")) == first_id(3)


def test_the_sweep_keeps_what_is_up_and_what_is_anothers(ranges):
    homes = Path("/data/sandboxes")
    up, down = ranges.claim(homes / "up"), ranges.claim(homes / "down")
    other = ranges.claim(Path("/other/sandboxes/down"))
    lost = next(id for number in range(1, COUNT) if (id := first_id(number)) not in (up, down, other))
    (ranges.folder / "garbage").write_text("what is this")
    (ranges.folder / "4000").mkdir()
    ranges.sweep(homes, {"up": up, "lost": lost, "old": 0})
    kept = {first_id(int(link.name)): os.readlink(link) for link in ranges.folder.iterdir() if link.is_symlink()}
    assert kept == {up: "/data/sandboxes/up", other: "/other/sandboxes/down", lost: "/data/sandboxes/lost"}


def test_a_service_that_holds_the_lock_for_long_stops_no_other(ranges, monkeypatch):
    monkeypatch.setattr(id_ranges, "_LOCK_SECONDS", 0.05)
    ranges.claim(Path("/data/sandboxes/one"))
    folder = os.open(ranges.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(StartFailed, match="Another service"):
            ranges.claim(Path("/data/sandboxes/two"))
    finally:
        os.close(folder)
