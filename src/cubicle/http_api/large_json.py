"""JSON with long lists. A call into the encoder holds the interpreter's lock, on whatever thread: ten thousand entries
at once would hold up the event loop for tens of milliseconds. So they are encoded a few at a time."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse

_AT_A_TIME = 100


class LargeJsonResponse(JSONResponse):
    """An object whose long lists are encoded in pieces. It is to be made on a thread."""

    def render(self, content: Any) -> bytes:
        fields = (f"{_dumps(name)}:{_encoded(value)}" for name, value in content.items())
        return f"{{{','.join(fields)}}}".encode()


def _encoded(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _dumps(value)
    pieces = (_dumps(value[start : start + _AT_A_TIME])[1:-1] for start in range(0, len(value), _AT_A_TIME))
    return f"[{','.join(pieces)}]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
