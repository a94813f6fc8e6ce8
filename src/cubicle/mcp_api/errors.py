"""HTTP errors on the MCP paths: a JSON-RPC error without an id, with the members of the problem (RFC 9457) beside it.

MCP clients show the message of a JSON-RPC error in a body of `application/json`, and nothing of any other body. Other
programs read `type`, `title`, `status` and `detail`, as everywhere in this service.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from cubicle.core.problem import SERVER_ERROR, Problem
from cubicle.mcp_api import jsonrpc

MEDIA_TYPE = "application/json"
_MAX_ERROR = 4096

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class McpRefused(Exception):
    """The request goes no further."""

    def __init__(self, problem: Problem, code: int | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.code = code


def body(problem: Problem, code: int | None = None) -> bytes:
    """`code` is the JSON-RPC error code, where the status does not say enough."""
    if code is None:
        code = jsonrpc.INTERNAL_ERROR if problem.status >= 500 else jsonrpc.INVALID_REQUEST
    error = {"code": code, "message": problem.detail, "data": problem.members}
    record = {"jsonrpc": "2.0", "id": None, "error": error, **problem.members}
    return json.dumps(record, ensure_ascii=False).encode()


async def send_refusal(send: Send, problem: Problem, code: int | None = None) -> None:
    content = body(problem, code)
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(content)), **problem.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": content})


def is_unforeseen(outcome: Mapping[str, Any]) -> bool:
    """Whether an answer is the error of a method that failed in a way nobody foresaw; no other has this code."""
    error = outcome.get("error")
    return isinstance(error, Mapping) and error.get("code") == jsonrpc.INTERNAL_ERROR


def with_server_errors(send: Send) -> Send:
    """For answers that the SDK writes: an unforeseen error becomes an HTTP 500, unless events were sent before it."""
    held: list[MutableMapping[str, Any]] = []

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and _is_json(message["headers"]):
            held.append(message)
            return
        start = held.pop() if held else None
        if start is not None:
            if len(content := message["body"]) < _MAX_ERROR and is_unforeseen(json.loads(content)):
                await send_refusal(send, SERVER_ERROR)
                return
            await send(start)
        await send(message)

    return sending


def _is_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value == MEDIA_TYPE.encode() for name, value in headers)
