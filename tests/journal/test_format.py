"""The lines of a journal, as bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cubicle.journal import format

_DEEP: dict[str, Any] = {}
for _ in range(500):
    _DEEP = {"a": _DEEP}

VALUES: dict[str, Any] = {
    "plain": "true",
    "controls": '\x00\x1b[31m\x7f\t"\\/',
    "letters": "é\u2028😀",
    "half a character": "\ud800",
    "numbers": [0, -1, 2**70, 0.1 + 0.2, 1e16, 1e-7],
    "constants": [None, True, False],
    "nested": {"a": [{"b": {}}], "": []},
    "deep": _DEEP,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_line_says_what_it_was_given_in_ascii(name: str) -> None:
    fields = {"value": VALUES[name]}
    line, hash = format.line(7, format.body(1.5, "end", fields), format.NO_HASH)
    assert line.isascii()
    found = format.check(line[:-1])
    assert found is not None
    assert (found.number, found.at, found.kind, found.hash) == (7, 1.5, "end", hash)
    entry = format.entry(line[:-1])
    assert entry is not None
    assert entry.fields == fields


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, (1, 2), {1: "a"}, object])
def test_what_json_has_no_word_for_is_written_as_before(value: Any) -> None:
    whole = json.dumps({"value": value}, separators=(",", ":"), default=str)
    assert format.body(1.5, "end", {"value": value}) == b'"at":1.500,"kind":"end","fields":' + whole.encode()


@pytest.mark.parametrize("text", ["x", "é"])
def test_what_is_too_long_is_shortened(text: str) -> None:
    body = format.body(1.5, "end", {"call": "a", "head": text * 300_000})
    line, _ = format.line(7, body, format.NO_HASH)
    assert len(line) <= format.MAX_LINE
    entry = format.entry(line[:-1])
    assert entry is not None
    assert entry.fields["call"] == "a"
    length = entry.fields["shortened"]
    assert isinstance(length, int)
    assert length > 300_000


def test_what_cannot_be_read_is_said() -> None:
    around: list[Any] = []
    around.append(around)
    assert b'{"unreadable":true}' in format.body(1.5, "end", {"value": around})
