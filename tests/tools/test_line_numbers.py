"""Line numbers, ranges, and the cap over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.tools.line_numbers import (
    WHOLE,
    BadRange,
    LineRange,
    Numbering,
    OutOfRange,
    number_lines,
    prefix_characters,
)
from cubicle.tools.output import cap

TEXTS = st.text(alphabet="ab\n\r é", max_size=200)


def shown(text: str, lines: LineRange = WHOLE, limit: int = 30_000, piece: int = 7) -> str:
    numbering = Numbering(lines, limit)
    for at in range(0, len(text), piece):
        numbering.feed(text[at : at + piece])
        if numbering.done:
            break
    return numbering.finish()


def plainly(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [f"{n:6}\t{line}" for n, line in enumerate(lines, 1)]


@given(TEXTS, st.integers(1, 50))
def test_every_line_has_its_own_number(text: str, piece: int) -> None:
    assert shown(text, piece=piece) == "\n".join(plainly(text))


@given(TEXTS, st.integers(1, 30), st.integers(-1, 30), st.integers(1, 50))
def test_a_range_shows_exactly_its_lines_or_says_how_many_there_are(
    text: str, start: int, end: int, piece: int
) -> None:
    lines = plainly(text)
    if end != -1 and end < start:
        with pytest.raises(BadRange):
            LineRange.parse(start, end)
        return
    asked = LineRange.parse(start, end)
    if asked != WHOLE and (start > len(lines) or end > len(lines)):
        with pytest.raises(OutOfRange, match=f"has {len(lines)} line"):
            shown(text, asked, piece=piece)
    else:
        wanted = lines[start - 1 : len(lines) if end == -1 else end]
        assert shown(text, asked, piece=piece) == "\n".join(wanted)


@given(st.text(alphabet="abc\n", min_size=1, max_size=400), st.integers(8, 40), st.integers(1, 90), st.integers(1, 5))
def test_the_cap_is_that_of_the_numbered_text(text: str, half: int, piece: int, start: int) -> None:
    numbered = number_lines(text, 1)
    if start > 1:
        if len(plainly(text)) < start:
            return
        numbered = "\n".join(plainly(text)[start - 1 :]) + ("\n" if text.endswith("\n") else "")
    result = shown(text, LineRange(start, None), 2 * half, piece)
    assert result == cap(numbered, 2 * half).removesuffix("\n")


@given(st.integers(1, 2_000_000), st.integers(0, 300))
def test_the_width_of_numbers_is_counted(first: int, lines: int) -> None:
    assert prefix_characters(first, lines) == sum(len(f"{n:6}\t") for n in range(first, first + lines))


@pytest.mark.parametrize("pair", [(0, 1), (-3, 2), (5, 4), (1, -2)])
def test_what_is_no_range_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(BadRange, match="view_range"):
        LineRange.parse(*pair)


def test_a_huge_text_costs_little_memory() -> None:
    numbering = Numbering()
    for _ in range(1_000):
        numbering.feed("some line of text\n" * 10_000)
    text = numbering.finish()
    assert text.startswith("     1\tsome line")
    assert text.endswith("10000000\tsome line of text")
    assert len(text) < 30_100
