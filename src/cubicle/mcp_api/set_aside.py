"""Long values of a request in the newer era, which the SDK need not see: it would decode 50 MB once more and encode
15 MB in one go, each of which holds up the event loop for half a second. It gets short marks in their place."""

from __future__ import annotations

import json
import secrets
from collections.abc import MutableMapping
from typing import Any

from cubicle.mcp_api.jsonrpc import JsonRpcMessage
from cubicle.mcp_api.raw_json import RawJson, filled, marked
from cubicle.mcp_api.transport import Send, send_body

SET_ASIDE = "cubicle.set_aside"
"""Where, in the ASGI scope, it is."""
_SEEN = ("name", "_meta")
_MAX_SEEN = 64 * 1024
_LONG = 256
"""Characters: a message has a limited number of values, so what is shorter is not much."""


def describes_itself_briefly(message: JsonRpcMessage) -> bool:
    """Whether what is kept, or told again, of a request beside its arguments is short. In both eras: each notification
    of its progress has its token."""
    id = message.id if isinstance(message.id, str) else ""
    return len(id) + sum(_length(message.params.get(name)) for name in _SEEN) <= _MAX_SEEN


class SetAside:
    """What one request has set aside, of what came and of what goes."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(16)
        self._texts: list[str] = []
        self._raw: list[RawJson] = []

    def shortened(self, message: JsonRpcMessage) -> bytes:
        """The message with marks for its long texts, but those that the SDK looks at."""
        params = {name: value if name in _SEEN else self._without(value) for name, value in message.params.items()}
        fields: dict[str, Any] = {"jsonrpc": "2.0", "method": message.method, "params": params}
        if message.id is not None:
            fields["id"] = message.id
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def restored(self, value: Any) -> Any:
        """A tool's arguments, with the texts in place of their marks."""
        if isinstance(value, str) and value.startswith(self._prefix):
            return self._texts[int(value[len(self._prefix) :])]
        if isinstance(value, dict):
            return {name: self.restored(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.restored(each) for each in value]
        return value

    def _without(self, value: Any) -> Any:
        if isinstance(value, str) and len(value) > _LONG:
            self._texts.append(value)
            return f"{self._prefix}{len(self._texts) - 1}"
        if isinstance(value, dict):
            return {name: self._without(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._without(each) for each in value]
        return value

    def marked(self, result: dict[str, Any]) -> dict[str, Any]:
        """Fields of a result with marks for what is encoded already."""
        return {name: marked(value, self._raw) for name, value in result.items()}

    def filling(self, send: Send) -> Send:
        """For what the SDK sends: with the values in place of their marks."""
        held: list[MutableMapping[str, Any]] = []

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            pieces = filled(message.get("body", b""), self._raw)
            while held:
                start = held.pop()
                await send({**start, "headers": _with_length(start["headers"], sum(map(len, pieces)))})
            await send_body(send, pieces, more=message.get("more_body", False))

        return sending


def _length(value: Any) -> int:
    """The characters of all texts and names in it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _length(each) for name, each in value.items())
    return sum(map(_length, value)) if isinstance(value, list) else 0


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    return [(name, b"%d" % length if name == b"content-length" else value) for name, value in headers]
