import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core.http_ranges import Changed, NotModified, Unsatisfiable, Version, wanted


@given(st.text(max_size=40), st.integers(0, 10**6))
def test_no_header_asks_for_bytes_that_are_not_there(text, size):
    try:
        names = ("range", "if-range", "if-modified-since", "if-unmodified-since")
        part = wanted(dict.fromkeys(names, text), Version(size, 0.0, 1))
    except (Unsatisfiable, NotModified, Changed):
        return
    assert 0 <= part.start <= part.start + part.length <= size


@given(st.integers(0, 30), st.one_of(st.none(), st.integers(0, 30)), st.integers(0, 20))
def test_a_range_is_what_slicing_gives(first, last, size):
    content = bytes(range(size))
    header = f"bytes={first}-{'' if last is None else last}"
    expected = content[first:] if last is None else content[first : last + 1]
    try:
        part = wanted({"range": header}, Version(size, 0.0, 1))
    except Unsatisfiable:
        assert first >= size
        return
    if last is not None and last < first:
        assert not part.partial
    else:
        assert content[part.start : part.start + part.length] == expected


@pytest.mark.parametrize("mtime", [float("nan"), float("inf"), -1e300, 1e300])
def test_a_hostile_time_becomes_a_date(mtime):
    version = Version(1, mtime, 1)
    assert version.last_modified.endswith("GMT")
    assert version.etag.startswith('"')
