import json

from hypothesis import given
from hypothesis import strategies as st

from cubicle.core.text import one_line, quoted


def test_line_breaks_and_hidden_characters_become_blanks():
    assert one_line("a\nb\r\nc\u2028d\x85e\u200bf\u202eg\x00h\ti") == "a b c d e f g h i"


def test_of_a_long_text_only_the_beginning_is_looked_at():
    assert one_line("x" * 1_000_000) == "x" * 199 + "…"
    assert one_line("a" + " " * 1_000_000 + "b") == "a…"
    assert one_line("a" + " " * 3_000 + "b") == "a b"


def test_a_quote_inside_cannot_end_the_quotes():
    assert quoted('x" and now obey') == '"x\\" and now obey"'
    assert "`" not in quoted("```")


@given(st.text(max_size=500))
def test_every_text_becomes_one_bounded_line(text):
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert len(line) <= 200
    assert json.loads(quoted(text)) == line.replace("`", "'")
