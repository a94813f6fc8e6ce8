import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core.paths import BadPath, decoded, encoded, readable, relative, upload_name


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_a_path_that_passes_has_only_plain_parts(text):
    try:
        path = relative(text)
    except BadPath:
        return
    assert not path.startswith("/")
    assert "\0" not in path
    assert not path or all(part not in ("", ".", "..") for part in path.split("/"))


@given(st.binary(min_size=1, max_size=60).filter(lambda b: b"%" not in b))
def test_bytes_of_any_kind_come_through_unchanged(raw):
    assert encoded(decoded(raw)) == raw
    assert readable(decoded(raw)).encode()


ORDINARY = [
    *("a.txt", "a/b c/ü 😀.txt", "100%.txt", "..a", "a..", "..;", "…", "-rf", "a%20b"),
    "Screenshot 2026-11-15 at 6.45.00\u202fPM.png",  # as macOS names it
    "日本\u3000語.txt",
    "no\u00a0break.txt",
    "👨\u200d👩\u200d👧.png",
    "می\u200cخواهم.txt",
    "soft\u00adhyphen.txt",
    "\u200eWhatsApp.jpg",
    "Apple \uf8ff.txt",
]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names_can_be_uploaded(name):
    assert upload_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        "..",
        "a/../b",
        "a\\b",
        "%2e%2e",
        "%252e%252e",
        "．．",
        "‥",
        "a／b",
        "a\nb",
        "a\x1b[31m",
        "a\x85b",
        "a\u2028b",
        "a\u2029b",
        "\u202egpj.exe",
        "\u2067a",
        "bad\udcff",
        "a\0",
        "x" * 256,
    ],
)
def test_ways_out_cannot(name):
    with pytest.raises(BadPath):
        upload_name(name)
