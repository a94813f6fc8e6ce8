"""The service clock: it counts service, whatever becomes of the date."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from cubicle.sandbox.clock import DAY, Clock, ServiceClock, kept_reading

HOUR = 3600.0
NOW = 1_790_000_000.0


@dataclass
class Machine:
    """A machine whose date anybody can set."""

    date: float = NOW
    up: float = 1000.0
    boots: int = 1

    def clock(self) -> Clock:
        return Clock(lambda: self.date, lambda: self.up, lambda: f"boot {self.boots}")

    def service(self, path: Path, **options: float) -> ServiceClock:
        clock = ServiceClock(path, clock=self.clock(), **options)
        clock.open()
        return clock

    def run(self, clock: ServiceClock, seconds: float) -> None:
        """The service runs, with a tick a minute."""
        while seconds > 0:
            step = min(60.0, seconds)
            self.date, self.up, seconds = self.date + step, self.up + step, seconds - step
            clock.tick()

    def pass_by(self, seconds: float) -> None:
        """Time in which no service runs, or the machine sleeps."""
        self.date, self.up = self.date + seconds, self.up + seconds

    def reboot(self, off: float, *, date: float | None = None) -> None:
        self.date = self.date + off if date is None else date
        self.up, self.boots = 30.0, self.boots + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clock.json"


@pytest.fixture
def machine() -> Machine:
    return Machine()


def days(clock: ServiceClock, key: str = "chat") -> float:
    return round((clock.now() - clock.last_use(key)) / DAY, 2)


def test_an_hour_of_service_is_an_hour(machine: Machine, path: Path) -> None:
    clock = machine.service(path)
    before = clock.now()
    machine.run(clock, HOUR)
    assert clock.now() - before == pytest.approx(HOUR)


@pytest.mark.parametrize(
    "date", [NOW + 31 * DAY, NOW - 31 * DAY, 0.0, NOW + 10_000 * DAY], ids=["+31", "-31", "1970", "+10000"]
)
def test_a_date_that_is_set_moves_nothing_and_begins_a_quiet_hour(machine: Machine, path: Path, date: float) -> None:
    clock = machine.service(path)
    machine.run(clock, 2 * HOUR)
    before, calm = clock.now(), clock.calm
    assert calm == pytest.approx(2 * HOUR)
    machine.date = date
    machine.run(clock, 60)
    assert clock.now() - before == pytest.approx(60)
    assert clock.calm == 0
    machine.run(clock, 30 * 60)
    assert clock.calm == pytest.approx(30 * 60)


def test_a_date_that_is_corrected_bit_by_bit_is_no_jump(machine: Machine, path: Path) -> None:
    clock = machine.service(path)
    for _ in range(120):
        machine.date += 0.5
        machine.run(clock, 60)
    assert clock.calm == pytest.approx(2 * HOUR)


def test_a_restart_of_the_service_counts_what_passed_by_a_clock_that_nobody_sets(machine: Machine, path: Path) -> None:
    clock = machine.service(path)
    clock.save({"chat": clock.now()})
    machine.pass_by(5 * HOUR)
    machine.date -= 400 * DAY
    again = machine.service(path)
    assert again.now() - again.last_use("chat") == pytest.approx(5 * HOUR)
    assert again.calm == 0


@pytest.mark.parametrize(
    ("off", "date", "counted"),
    [
        (8 * HOUR, None, 8 / 24),
        (3 * DAY, None, 1.0),
        (400 * DAY, None, 1.0),
        (HOUR, 0.0, 0.0),
        (HOUR, NOW - 31 * DAY, 0.0),
        (HOUR, NOW + 31 * DAY, 1.0),
    ],
    ids=["night", "weekend", "a year", "1970", "past", "future"],
)
def test_time_that_the_machine_was_off_counts_after_a_quiet_hour_and_at_most_a_day(
    machine: Machine, path: Path, off: float, date: float | None, counted: float
) -> None:
    clock = machine.service(path)
    clock.save({"chat": clock.now()})
    machine.reboot(off, date=date)
    again = machine.service(path)
    assert days(again) == 0
    machine.run(again, 59 * 60)
    assert days(again) == round(59 / 60 / 24, 2)
    machine.run(again, 2 * 60)
    assert days(again) == pytest.approx(counted + 1 / 24, abs=0.02)


@pytest.mark.parametrize("wrong", [0.0, NOW - 31 * DAY, NOW + 31 * DAY])
def test_a_wrong_date_at_the_boot_that_is_then_corrected_counts_for_nothing(
    machine: Machine, path: Path, wrong: float
) -> None:
    clock = machine.service(path)
    clock.save({"chat": clock.now()})
    machine.reboot(HOUR, date=wrong)
    again = machine.service(path)
    machine.run(again, 10 * 60)
    machine.date = NOW + 2 * HOUR
    machine.run(again, 3 * HOUR)
    assert again.now() - again.last_use("chat") == pytest.approx(3 * HOUR + 10 * 60)


def test_a_machine_that_slept_counts_at_most_a_day_and_is_not_calm(machine: Machine, path: Path) -> None:
    clock = machine.service(path)
    machine.run(clock, 2 * HOUR)
    before = clock.now()
    machine.pass_by(31 * DAY)
    assert clock.now() - before == DAY
    clock.tick()
    assert clock.now() - before == DAY
    assert clock.calm == 0


@pytest.mark.parametrize("off", [0.0, 16 * HOUR])
def test_thirty_days_pass_on_a_machine_that_is_switched_off_every_night(
    machine: Machine, path: Path, off: float
) -> None:
    """Removal is delayed, not lost."""
    clock = machine.service(path)
    used = {"chat": clock.now()}
    for _ in range(31):
        machine.run(clock, 24 * HOUR - off)
        clock.save(used)
        machine.reboot(off)
        clock = machine.service(path)
    assert 29 <= days(clock) <= 32


def test_a_use_from_the_future_is_a_use_now(machine: Machine, path: Path) -> None:
    clock = machine.service(path)
    clock.save({"chat": clock.now() + 400 * DAY})
    again = machine.service(path)
    assert days(again) == 0
    assert days(again, "never seen") == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"reading": 1}',
        b'{"reading": NaN, "wall": 1, "elapsed": 1, "boot": "", "uses": {}}',
        b'{"reading": 1e999, "wall": 1, "elapsed": 1, "boot": "", "uses": {}}',
        b'{"reading": -1, "wall": 1, "elapsed": 1, "boot": "", "uses": {}}',
        b'{"reading": true, "wall": 1, "elapsed": 1, "boot": "", "uses": {}}',
        b'{"reading": 1' + b"0" * 400 + b', "wall": 1, "elapsed": 1, "boot": "", "uses": {}}',
        b'{"reading": 1, "wall": 1, "elapsed": 1, "boot": "", "uses": []}',
        b"[" * 100_000,
        b"\xff" * 100,
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside_and_everything_was_used_now(
    machine: Machine, path: Path, content: bytes
) -> None:
    path.write_bytes(content)
    clock = machine.service(path)
    assert days(clock) == 0
    (aside,) = path.parent.glob("clock.json.unreadable-*")
    assert aside.read_bytes() == content
    clock.save({"chat": clock.now()})
    assert days(machine.service(path)) == 0


def test_a_damaged_digit_makes_no_chat_old(machine: Machine, path: Path) -> None:
    """It would be among the chats that go: all of them, an hour after the next start."""
    clock = machine.service(path)
    machine.run(clock, 1.5 * DAY)
    clock.save({"chat": clock.now()})
    good = path.read_text()
    at = good.index('"reading": ') + len('"reading": ')
    path.write_text(good[:at] + "9" + good[at + 1 :])
    assert days(machine.service(path)) == 0
    assert len(list(path.parent.glob("clock.json.unreadable-*"))) == 1
    path.write_text(good)
    assert kept_reading(path) == pytest.approx(1.5 * DAY)
    assert days(machine.service(path)) == 0


def test_a_file_of_a_version_that_wrote_no_checksum_is_read(machine: Machine, path: Path) -> None:
    clock = machine.service(path)
    machine.run(clock, 0.5 * DAY)
    clock.save({"chat": 0.0})
    fields = json.loads(path.read_text())
    del fields["sum"]
    path.write_text(json.dumps(fields))
    assert days(machine.service(path)) == 0.5


def test_a_folder_in_its_place_stops_nothing(machine: Machine, path: Path) -> None:
    path.mkdir()
    assert days(machine.service(path)) == 0


def test_single_uses_that_are_no_readings_are_uses_now(machine: Machine, path: Path) -> None:
    clock = machine.service(path)
    machine.run(clock, 10 * DAY)
    clock.save({"good": 0.0})
    fields = json.loads(path.read_bytes())
    del fields["sum"]  # as of a version that wrote none
    fields["uses"] |= {"text": "x", "none": None, "nan": float("nan"), "less": -5, "list": [1]}
    path.write_text(json.dumps(fields))
    again = machine.service(path)
    assert days(again, "good") == 10
    assert {days(again, key) for key in ("text", "none", "nan", "less", "list")} == {0}


def test_the_clocks_of_this_machine(path: Path) -> None:
    clock = ServiceClock(path)
    clock.open()
    clock.save({})
    assert Clock().boot()
    assert 0 <= clock.now() < 60
    assert ServiceClock(path).now() >= 0


def test_what_several_processes_kept_is_read_as_one(machine: Machine, tmp_path: Path) -> None:
    """Each has a file of its own: the furthest reading counts, and the latest use of each chat."""
    one, two = machine.service(tmp_path / "clock.json"), machine.service(tmp_path / "clock-2.json")
    one.save({"a": 1.0, "b": 5.0})
    machine.run(two, HOUR)
    two.save({"b": 3.0, "c": 7.0})
    for name in ("clock.json", "clock-2.json", "clock-3.json"):
        again = machine.service(tmp_path / name)
        assert again.now() == two.now()
        assert dict(again.uses) == {"a": 1.0, "b": 5.0, "c": 7.0}
