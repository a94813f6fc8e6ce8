"""The counts of the last day: windows, bounds, and what a restart, a bad file and a clock that jumps leave of them."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.metrics import recent_file
from cubicle.metrics.metrics import Metrics
from cubicle.metrics.recent import DAY, HOUR, MAX_PROBLEMS, MAX_TENANTS, MINUTE, OTHER, Recent
from cubicle.metrics.recent_file import RecentFile, parse, restore, saved

START = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recent(clock: Clock) -> Recent:
    return Recent(clock)


def test_the_last_hour_forgets_what_is_older_and_the_day_does_not(recent: Recent, clock: Clock) -> None:
    recent.add("done", 3, "acme")
    clock.now += 59 * MINUTE
    recent.add("done", 2, "acme")
    assert recent.last_hour()["done"] == recent.last_hour("acme")["done"] == 5
    clock.now += MINUTE
    assert recent.last_hour()["done"] == 2
    assert sum(each["done"] for each in recent.series(None, 96, 15)) == 5
    clock.now += DAY * MINUTE
    assert sum(each["done"] for each in recent.series(None, 96, 15)) == 0


def test_a_series_ends_with_the_step_under_way(recent: Recent, clock: Clock) -> None:
    recent.add("done")
    clock.now += 2 * MINUTE
    recent.add("done", 4)
    assert [each["done"] for each in recent.series(None, 4, 1)] == [0, 1, 0, 4]


def test_a_tenant_has_its_own_counts_and_nobody_elses(recent: Recent) -> None:
    recent.add("failed", 2, "acme")
    recent.add("failed", 5, "other")
    recent.note("acme", "a", "call", "bash_tool: failed")
    assert recent.last_hour("acme")["failed"] == 2
    assert recent.last_hour("nobody")["failed"] == 0
    assert list(recent.problems("other")) == []


def test_memory_is_bounded_whatever_comes(recent: Recent, clock: Clock) -> None:
    for number in range(3 * MAX_TENANTS):
        recent.add("done", 1, f"tenant-{number}")
        recent.note(f"tenant-{number}", "chat", "call", "bash_tool: failed")
    assert len(recent.tenants) <= MAX_TENANTS + 1
    assert recent.last_hour(OTHER)["done"] + sum(recent.last_hour(f"tenant-{n}")["done"] for n in range(600)) == 600
    for number in range(10 * MAX_PROBLEMS):
        recent.note("tenant-1", f"chat-{number}", "call", "bash_tool: failed")
    assert len(recent.tenants["tenant-1"].problems) == MAX_PROBLEMS
    for _ in range(3 * DAY):
        clock.now += MINUTE
        recent.add("done", 1, "tenant-1")
    assert len(recent.totals) <= DAY
    assert len(recent.tenants["tenant-1"].minutes) <= HOUR


def test_tenants_that_were_quiet_for_an_hour_make_room(recent: Recent, clock: Clock) -> None:
    for number in range(MAX_TENANTS):
        recent.add("done", 1, f"tenant-{number}")
    clock.now += 2 * HOUR * MINUTE
    recent.add("done", 1, "late")
    assert recent.last_hour("late")["done"] == 1


def test_the_same_problem_is_one_row_that_counts(recent: Recent, clock: Clock) -> None:
    recent.note("acme", "a", "call", "bash_tool: failed")
    clock.now += 60
    recent.note("acme", "a", "call", "bash_tool: failed")
    recent.note("acme", "a", "egress", "denied", 7)
    found = {problem.kind: problem for _, problem in recent.problems()}
    assert (found["call"].count, found["call"].since, found["call"].at) == (2, START, START + 60)
    assert found["egress"].count == 7
    clock.now += 2 * HOUR * MINUTE
    assert list(recent.problems()) == []
    recent.note("acme", "a", "call", "bash_tool: failed")
    assert next(recent.problems())[1].count == 1


def test_a_removed_chat_is_forgotten(recent: Recent) -> None:
    recent.note("acme", "a", "call", "x: failed")
    recent.note("acme", "b", "call", "x: failed")
    recent.note("other", "a", "call", "x: failed")
    recent.forget("a", "acme")
    assert [(tenant, problem.chat) for tenant, problem in recent.problems()] == [("acme", "b"), ("other", "a")]


@pytest.mark.parametrize("jump", [-10 * 86400, -7200, 7200, 10 * 86400])
def test_a_clock_that_jumps_loses_no_new_count_and_keeps_no_more(recent: Recent, clock: Clock, jump: int) -> None:
    for _ in range(HOUR):
        clock.now += MINUTE
        recent.add("done", 1, "acme")
    clock.now += jump
    recent.add("done", 1, "acme")
    assert recent.last_hour()["done"] >= 1
    assert len(recent.totals) <= 2 * DAY


def test_what_metrics_counts_is_counted_here_too() -> None:
    metrics = Metrics()
    for outcome in ("done", "done", "timed_out", "crashed", "cancelled"):
        metrics.call_began("view")
        metrics.call_ended("view", outcome, 0.1, "acme", "a")
    metrics.quota_refused("calls", "tenant", "acme", "a")
    metrics.load_shed("memory", "acme", "a")
    metrics.egress_decided("denied", 3, "acme", "a")
    metrics.egress_decided("allowed", 9, "acme", "a")
    metrics.request_ended("mcp", 503, 0.1)
    values, hour = metrics.values(), metrics.recent.last_hour("acme")
    assert values["cubicle_tool_calls_total", ("timed_out", "view")] == hour["timed_out"] == 1
    assert values["cubicle_quota_refusals_total", ("calls", "tenant")] == hour["refused"] == 1
    assert values["cubicle_load_shed_total", ("memory",)] == hour["shed"] == 1
    assert values["cubicle_egress_decisions_total", ("denied",)] == hour["egress_denied"] == 3
    assert metrics.recent.last_hour()["http_5xx"] == 1
    assert {problem.detail for _, problem in metrics.recent.problems() if problem.kind == "call"} == {
        "view: timed_out", "view: crashed",
    }  # fmt: skip


# ---- on disk


def filled(clock: Clock) -> Recent:
    recent = Recent(clock)
    recent.add("failed", 4, "acme")
    recent.note("acme", "a", "call", "bash_tool: failed", 4)
    recent.add("done", 2, "other")
    return recent


async def test_a_restart_keeps_the_history(tmp_path: Path, clock: Clock) -> None:
    before = filled(clock)
    async with RecentFile(before, tmp_path).kept():
        before.add("done", 1, "acme")
    after = Recent(clock)
    async with RecentFile(after, tmp_path).kept():
        assert after.last_hour() == before.last_hour()
        assert after.last_hour("acme") == before.last_hour("acme")
        assert list(after.problems()) == list(before.problems())


async def test_what_is_too_old_is_not_read_again(tmp_path: Path, clock: Clock) -> None:
    async with RecentFile(filled(clock), tmp_path).kept():
        pass
    clock.now += 3 * 86400
    after = Recent(clock)
    async with RecentFile(after, tmp_path).kept():
        assert (after.totals, after.tenants) == ({}, {})


async def test_it_is_written_while_the_service_runs(tmp_path: Path, clock: Clock) -> None:
    """A service that is killed loses only what came since."""
    recent = Recent(clock)
    async with RecentFile(recent, tmp_path, seconds=0.01).kept():
        recent.add("done", 5, "acme")
        async with asyncio.timeout(10):
            while not (tmp_path / "recent.jsonl").exists():
                await asyncio.sleep(0.01)
        lines = parse((tmp_path / "recent.jsonl").read_bytes())[0]
        assert [sum(sum(m.values()) for m in line["minutes"].values()) for line in lines] == [5, 5]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"garbage\n", b"[]\n", b"\xff\xfe\n", b'{"minutes": 3}\n', b'{"minutes": {"x": {}}}\n',
        b'{"minutes": {"1": {"done": -1}}}\n', b'{"minutes": {"1": {"done": 1e999}}}\n', b"[" * 100_000,
        b'{"tenant": 4, "minutes": {}}\n', b'{"tenant": "../../x", "minutes": {}}\n', b'{"tenant": "a", "minutes": {}, "problems": [[1]]}\n',
        b'{"tenant": "a", "minutes": {}, "problems": [["../x", "call", "d", 1, 1, 1]]}\n',
        b'{"tenant": "a", "minutes": {}, "problems": [["x", "call", "d", NaN, 1, 1]]}\n',
        b'{"minutes": {"' + b"9" * 5000 + b'": {}}}\n',
    ],
)  # fmt: skip
async def test_a_file_that_is_none_is_set_aside_and_the_service_starts(
    tmp_path: Path, clock: Clock, content: bytes
) -> None:
    (tmp_path / "recent.jsonl").write_bytes(content)
    recent = Recent(clock)
    async with RecentFile(recent, tmp_path).kept():
        assert recent.last_hour() == {}
        recent.add("done", 1, "acme")
    aside = [path for path in tmp_path.iterdir() if ".bad-" in path.name]
    assert [path.read_bytes() for path in aside] == ([content] if content else [])
    assert parse((tmp_path / "recent.jsonl").read_bytes())[1] is None


async def test_the_good_lines_of_a_damaged_file_are_used(tmp_path: Path, clock: Clock) -> None:
    lines = [json.dumps(line).encode() for line in saved(filled(clock))]
    (tmp_path / "recent.jsonl").write_bytes(b"\n".join([lines[0], b'{"torn', *lines[2:]]))
    recent = Recent(clock)
    async with RecentFile(recent, tmp_path).kept():
        assert recent.last_hour()["failed"] == 4
        assert (recent.last_hour("acme")["failed"], recent.last_hour("other")["done"]) == (0, 2)


def test_no_bytes_of_a_damaged_file_break_the_reader(clock: Clock) -> None:
    good = b"\n".join(json.dumps(line).encode() for line in saved(filled(clock)))
    chance = random.Random(17)
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        recent = Recent(clock)
        for line in parse(bytes(bad[: chance.randint(0, len(bad))]))[0]:
            restore(recent, line)
        recent.last_hour("acme")
        list(recent.problems())


async def test_a_full_disk_is_told_once_and_tried_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recent = filled(clock)
    file = RecentFile(recent, tmp_path)

    def full(path: Path, lines: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(recent_file, "_write", full)
        await file.save()
        await file.save()
    assert len(caplog.records) == 1
    await file.save()
    assert parse((tmp_path / "recent.jsonl").read_bytes())[0]


async def test_a_chat_that_is_removed_while_no_service_runs_is_forgotten(tmp_path: Path) -> None:
    recent = Recent()
    recent.note("acme", "secret", "call", "x: failed")
    recent.note("acme", "other", "call", "x: failed")
    await RecentFile(recent, tmp_path).save()
    await asyncio.to_thread(recent_file.remove_records, tmp_path, Chat("secret", "acme").digest)
    text = (tmp_path / "recent.jsonl").read_text()
    assert "secret" not in text
    assert "other" in text
    await asyncio.to_thread(recent_file.remove_records, tmp_path / "none", Chat("secret", "acme").digest)
