"""Logs: one line an event, with the chat on each."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from cubicle import log
from cubicle.core.chat import Chat
from cubicle.egress.audit import AuditEvent, AuditLog
from cubicle.egress.policy import Request, Target
from cubicle.machine.machine import Machine
from cubicle.sandbox.sandbox_services import SandboxServices
from tests.support.service import fleet_of


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_events_are_json_lines_when_nobody_watches() -> None:
    stream = io.StringIO()
    log.configure("auto", stream)
    with log.bound(chat="a", request="r1"):
        logging.getLogger("cubicle.test").info("tool call", extra={"tool": "view", "error": False})
    logging.getLogger("cubicle.test").info("two\nlines")
    log.flush()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["chat"], first["request"], first["tool"]) == ("tool call", "a", "r1", "view")
    assert first["time"].endswith("Z")
    assert second["event"] == "two\nlines"
    assert "chat" not in second


def test_events_are_single_lines_for_people_too() -> None:
    stream = io.StringIO()
    log.configure("text", stream)
    with log.bound(chat="a"):
        logging.getLogger("cubicle.test").warning("first\nsecond")
    log.flush()
    assert stream.getvalue().count("\n") == 1
    assert "chat=a" in stream.getvalue()


HOSTILE = "\x1b]52;c;eA==\x07\x1b[2J\r19:99:99\x9b\u202e\u2028\x7f\udcff"


@pytest.mark.parametrize("style", ["text", "json"])
def test_nobody_speaks_to_the_terminal_through_the_log(style: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    log.configure(style, stream)
    with log.bound(chat=HOSTILE):
        logging.getLogger("cubicle.test").info(HOSTILE, extra={"path": HOSTILE})
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logging.getLogger("cubicle.test").exception("it failed")
    log.flush()
    stream.seek(0)
    lines = stream.read().splitlines()
    assert all(line.isprintable() for line in lines)
    if style == "json":
        first, second = map(json.loads, lines)
        assert (first["event"], first["path"], first["chat"]) == (HOSTILE,) * 3
        assert HOSTILE in second["exception"]


def test_a_failure_is_logged_with_its_reason() -> None:
    stream = io.StringIO()
    log.configure("json", stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("cubicle.test").exception("it failed")
    log.flush()
    assert "ValueError: why" in json.loads(stream.getvalue())["exception"]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(its reading end, its writing end)"""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_log_that_nobody_takes_holds_up_nothing(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_MAX_COUNT", 2000)
    monkeypatch.setattr(log, "Repeats", partial(log.Repeats, 10**6, 10**6))
    monkeypatch.setattr(log, "_TIMEOUT", 0.1)
    reading, writing = pipe
    with open(writing, "w", closefd=False) as stream:
        log.configure("json", stream)
        for number in range(10_000):
            logging.getLogger("cubicle.test").info("%d %s", number, "x" * 100)
        log.flush()
        seen, missing, rest = list[int](), 0, b""
        while len(seen) + missing < 10_000:
            *lines, rest = (rest + os.read(reading, 65536)).split(b"\n")
            for line in lines:
                number, text = json.loads(line)["event"].split(" ", 1)
                if "missing" in text:
                    missing += int(number)
                else:
                    seen.append(int(number))
        assert len(seen) + missing == 10_000
        assert seen == sorted(seen)
        assert len(seen) >= 2000
        assert missing
        log.configure("json", io.StringIO())


def test_a_log_that_was_closed_is_no_reason_to_fail(pipe: tuple[int, int]) -> None:
    with open(pipe[1], "w", closefd=False) as stream:
        log.configure("json", stream)
    logging.getLogger("cubicle.test").info("nobody reads this")
    log.flush()


async def test_what_outlives_a_request_names_the_chat_and_who_used_it_last(tmp_path: Path) -> None:
    """The egress audit and all else that lives beside a sandbox: they are not the request that started it."""
    stream = io.StringIO()
    log.configure("json", stream)
    chat = Chat("outlives", "acme")
    trail = AuditLog(chat, Request(Target.parse("example.org", 443)), "connect")

    @asynccontextmanager
    async def sandbox_service(_chat: Chat, _machine: Machine) -> AsyncIterator[None]:
        trail.record(AuditEvent.ALLOWED)
        yield
        trail.record(AuditEvent.CLOSED)

    async with fleet_of(tmp_path) as fleet:
        fleet._sandbox_services = SandboxServices([sandbox_service])
        with log.bound(request="r1"):
            log.note_caller(chat, "ann@example.org")
            async with fleet.lease(chat):
                pass
        with log.bound(request="r2"):
            log.note_caller(chat, "bob@example.org")
            await fleet.stop(chat)
    await asyncio.to_thread(log.flush)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    seen = [(line["event"], line.get("request"), line["tenant"], line["user"]) for line in lines if "chat" in line]
    assert seen == [
        ("egress allowed", None, "acme", "ann@example.org"),
        ("sandbox up", "r1", "acme", "ann@example.org"),
        ("egress closed", None, "acme", "bob@example.org"),
    ]


def test_lines_of_one_kind_are_summed_up_per_chat() -> None:
    repeats = log.Repeats(of_chat=3, of_tenant=100, window=10)
    lines = [logging.makeLogRecord({"msg": "refused", "chat": chat, "tenant": "t"}) for chat in "aaaaab"]
    assert [repeats.admit(line, 1.0) for line in lines] == [True, True, True, False, False, True]
    assert repeats.summary(5.0) == []
    summed = repeats.summary(11.0)
    assert [(each.getMessage(), each.chat) for each in summed] == [("refused … repeated 2 times in 10 s", "a")]  # type: ignore[attr-defined]
    assert repeats.admit(lines[0], 12.0)


def test_a_tenant_with_many_chats_is_bounded_too() -> None:
    repeats = log.Repeats(of_chat=3, of_tenant=10, window=10)
    lines = [logging.makeLogRecord({"msg": f"line {n}", "chat": str(n), "tenant": "t"}) for n in range(100_000)]
    assert sum(repeats.admit(line, 1.0) for line in lines) == 10
    assert repeats.admit(logging.makeLogRecord({"msg": "other", "tenant": "u"}), 1.0)
    summed = repeats.summary(11.0)
    assert len(summed) <= 201
    assert sum(int(line.getMessage().split("repeated ")[1].split()[0].replace(",", "")) for line in summed) == 99_990


def test_the_sum_is_written_when_nothing_else_comes(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as stream:
        handler = log.LineHandler(stream, log.Repeats(of_chat=1, of_tenant=10, window=0.2))
        handler.setFormatter(log.JsonLines())
        for _ in range(1235):
            handler.handle(logging.makeLogRecord({"msg": "again", "chat": "a", "tenant": "t"}))
        deadline = time.monotonic() + 60
        while "repeated 1,234 times" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "log").read_text().count("\n") == 2
        handler.flush()
