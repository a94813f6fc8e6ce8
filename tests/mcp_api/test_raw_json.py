"""JSON of which a part was encoded before is what the encoder makes of the whole."""

from __future__ import annotations

import base64
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cubicle.mcp_api.raw_json import RawJson, dumps


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.text() | st.binary(), min_size=1))
def test_it_is_the_json_of_the_whole(fields: dict[str, str | bytes]) -> None:
    plain = {
        name: value if isinstance(value, str) else base64.b64encode(value).decode() for name, value in fields.items()
    }
    message = {"id": 1, "result": {"contents": [RawJson.of(fields), RawJson.of(fields)], "more": 'a"b'}}
    whole = {"id": 1, "result": {"contents": [plain, plain], "more": 'a"b'}}
    assert b"".join(dumps(message)) == json.dumps(whole, separators=(",", ":")).encode()


def test_long_values_come_in_pieces_and_are_whole() -> None:
    fields: dict[str, str | bytes] = {"text": "a\n€😀\ud800" * 50_000, "blob": bytes(range(256)) * 1_000}
    found = json.loads(b"".join(dumps({"contents": [RawJson.of(fields)]})))["contents"][0]
    assert found["text"] == fields["text"]
    assert base64.b64decode(found["blob"]) == fields["blob"]


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers()), max_size=500))
def test_a_list_is_that_of_the_whole(values: list[dict[str, object]]) -> None:
    assert json.loads(b"".join(dumps({"resources": RawJson.list_of(values)}))) == {"resources": values}
