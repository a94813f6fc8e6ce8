"""Limits that hold before anything looks into a request."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core.request_limits import MAX_JSON_DEPTH, MAX_JSON_ESCAPES, MAX_JSON_VALUES, JsonStructure, TooComplex

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=50,
)


def check(data: bytes, size: int = 65536) -> JsonStructure:
    structure = JsonStructure()
    for start in range(0, len(data), size):
        structure.feed(data[start : start + size])
    return structure


def containers_and_commas(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(containers_and_commas(item) for item in value.values())
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(containers_and_commas(item) for item in value)
    return 0


@given(JSON, st.integers(1, 40), st.booleans())
def test_what_is_counted_does_not_hang_on_how_it_comes(value, size, plain):
    data = json.dumps(value, ensure_ascii=plain).encode()
    assert check(data, size)._values == containers_and_commas(value)


@pytest.mark.parametrize(
    "data",
    [
        b"[]," * (MAX_JSON_VALUES // 2 + 1),
        b'{"a":1},' * (MAX_JSON_VALUES // 2 + 1),
        b"1," * (MAX_JSON_VALUES + 1),
        b'"",' * (MAX_JSON_VALUES + 1),
        b"[" * (MAX_JSON_DEPTH + 1),
        b'{"a":' * (MAX_JSON_DEPTH + 1),
        b'"' + b"\\n" * (MAX_JSON_ESCAPES + 1) + b'"',
    ],
    ids=lambda data: data[:8].decode(),
)
def test_structure_that_no_message_has_is_refused(data):
    with pytest.raises(TooComplex):
        check(data)


@pytest.mark.parametrize("text", ["[{," * 100_000, '"' * 100_000, "\\" * 100_001, '\\"[' * 99_999])
@pytest.mark.parametrize("size", [65536, 1, 7])
def test_brackets_in_a_string_are_text(text, size):
    check(json.dumps({"content": text[: 5000 if size < 65536 else None]}).encode(), size)


def test_a_body_of_brackets_is_refused_at_once():
    began = time.process_time()
    with pytest.raises(TooComplex):
        check(b"[]," * 20_000_000)
    assert time.process_time() - began < 0.1
