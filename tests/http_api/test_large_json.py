"""A long list, encoded in pieces, is the same JSON."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from cubicle.http_api.large_json import LargeJsonResponse

entries = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), max_size=350)


@settings(max_examples=100 if os.environ.get("CUBICLE_LONG") else 25)
@given(st.dictionaries(st.text(), entries | st.text() | st.booleans()))
def test_it_is_what_the_framework_makes_of_it(content: dict[str, object]) -> None:
    assert LargeJsonResponse(content).body == JSONResponse(content).body
