"""Logs: one line an event, with the chat on each."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from cubicle import log


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
    assert stream.getvalue().count("\n") == 1
    assert "chat=a" in stream.getvalue()


def test_a_failure_is_logged_with_its_reason() -> None:
    stream = io.StringIO()
    log.configure("json", stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("cubicle.test").exception("it failed")
    assert "ValueError: why" in json.loads(stream.getvalue())["exception"]
