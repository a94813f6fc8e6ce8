"""JSON-RPC 2.0 messages: whether a decoded body is one, before anything looks deeper into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002
ASLEEP = -32010
"""Ours: the chat's sandbox is stopped, and what was asked for does not wake it."""
REQUEST_CANCELLED = -32800
# Of this service; -32000 and the numbers next to it have meanings of their own in the SDKs.
SANDBOX_UNAVAILABLE = -32050
TOO_MANY_STREAMS = -32051
ANSWER_GONE = -32052
TASK_FAILED = -32053
INTERRUPTED = -32054

_MAX_ID = 2**63 - 1


class BadJsonRpc(ValueError):
    """The body is not one JSON-RPC message; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class JsonRpcMessage:
    """The outside of a message; no method means that it answers a request."""

    method: str | None
    id: int | str | None
    params: dict[str, Any]
    has_params: bool = True

    @property
    def request_id(self) -> int | str:
        """Of a request; 0 is what a notification has instead."""
        return 0 if self.id is None else self.id


def parse(decoded: Any) -> JsonRpcMessage:
    """The message that a decoded body is. Raises BadJsonRpc."""
    if not isinstance(decoded, dict):
        raise BadJsonRpc("The body must be one JSON-RPC message: an object. Send messages one by one, not as a batch.")
    if decoded.get("jsonrpc") != "2.0":
        raise BadJsonRpc('The field `jsonrpc` must be "2.0".')
    method, identity, params = decoded.get("method"), decoded.get("id"), decoded.get("params")
    if "id" in decoded and not is_request_id(identity):
        raise BadJsonRpc("The field `id` must be a string or an integer.")
    if params is not None and not isinstance(params, dict):
        raise BadJsonRpc("The field `params` must be an object.")
    if method is None and ("id" not in decoded or not _is_outcome(decoded)):
        raise BadJsonRpc("The field `method` is missing.")
    if method is not None and not isinstance(method, str):
        raise BadJsonRpc("The field `method` must be a string.")
    return JsonRpcMessage(method, identity, params or {}, params is not None)


def is_request_id(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -_MAX_ID <= value <= _MAX_ID
    return isinstance(value, str)


def _is_outcome(decoded: dict[str, Any]) -> bool:
    error = decoded.get("error")
    if isinstance(error, dict):
        return isinstance(error.get("code"), int) and isinstance(error.get("message"), str)
    return isinstance(decoded.get("result"), dict)
