"""The cap: both ends, in constant memory, whatever the pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cubicle.tools.output import OUTPUT_CAP, Cap, Decoder, cap

PIECES = st.lists(st.text(max_size=40), max_size=30)


@given(PIECES, st.integers(1, 40))
def test_what_is_kept_does_not_depend_on_the_pieces(pieces: list[str], half: int) -> None:
    whole, capped = "".join(pieces), Cap(2 * half)
    for piece in pieces:
        capped.feed(piece)
    assert capped.text() == cap(whole, 2 * half)
    if len(whole) <= 2 * half:
        assert capped.text() == whole
    else:
        left_out = len(whole) - 2 * half
        assert capped.text() == f"{whole[:half]}\n[... {left_out:,} characters left out ...]\n{whole[-half:]}"
        assert capped.left_out == left_out


def test_the_cap_is_30000_characters_in_two_halves() -> None:
    text = cap("a" * 20_000 + "b" * 20_000)
    assert OUTPUT_CAP == 30_000
    assert text == "a" * 15_000 + "\n[... 10,000 characters left out ...]\n" + "b" * 15_000
    assert cap("x" * 30_000) == "x" * 30_000


def test_memory_stays_small_however_much_is_fed() -> None:
    capped = Cap()
    for _ in range(2_000):
        capped.feed("0123456789" * 10_000)
    assert capped.characters == 200_000_000
    assert sum(map(len, capped.ends())) == 30_000
    assert len(capped._tail) < 100_000


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_decoding_does_not_depend_on_where_the_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    decoder, out, last = Decoder(), "", 0
    for at in sorted(c for c in cuts if c <= len(data)):
        out += decoder.feed(data[last:at])
        last = at
    out += decoder.feed(data[last:]) + decoder.finish()
    assert out == data.decode("utf-8", "replace")
