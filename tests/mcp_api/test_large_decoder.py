"""A large message is decoded piece by piece to what it says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubicle.core.request_limits import TooComplex
from cubicle.mcp_api import large_decoder
from cubicle.mcp_api.large_decoder import decode_large

texts = st.text(max_size=30) | st.builds(
    lambda piece, times: piece * times, st.text(min_size=1, max_size=8), st.integers(1, 1500)
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
)


@settings(deadline=None, max_examples=300)
@given(values, st.booleans(), st.sampled_from((64, 1000)))
def test_it_is_what_the_whole_says(value: Any, ascii_only: bool, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_decoder, "_PIECE", piece)
        text = json.dumps({"a": value}, ensure_ascii=ascii_only).encode()
        assert asyncio.run(decode_large(bytearray(text))) == {"a": value}


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": "', '{"a": "b\\"', '"' + "a" * 2000, '{"a": "' + "\\x" * 600 + '"}', '{"a": "' + "\n" * 600 + '"}'),
        *('{"a": "' + "b" * 600 + '" "c"}', "[" * 10, "", '{"a": "' + "b" * 600 + '\\ud800"}'),
    ],
)
async def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        await decode_large(text.encode())


async def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match=r".*"):
        await decode_large(b'{"a": "' + b"\xff" * 600 + b'"}')


async def test_a_long_name_is_refused() -> None:
    with pytest.raises(TooComplex, match="A name"):
        await decode_large(json.dumps({"b" * 600: 1}).encode())


@pytest.mark.parametrize("piece", ["a", "é", "😀", "\\n", "\\\\", "\\ud83d\\ude00"])
async def test_others_run_between_the_pieces(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_decoder, "_BUSY_SECONDS", 0.0)
    body = bytearray(b'{"a": "' + piece.encode() * (3_000_000 // len(piece.encode())) + b'"}')
    turns = 0
    decoding = asyncio.ensure_future(decode_large(body))
    while not decoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert decoding.result() == json.loads(body)
    assert turns > 10
