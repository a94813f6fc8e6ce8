"""The one shape of an HTTP error: application/problem+json (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, for the client. `detail` says what to do, and never holds a stack, a host path or a secret."""

    status: int
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    @property
    def members(self) -> dict[str, Any]:
        return {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}

    def body(self) -> bytes:
        return json.dumps(self.members, ensure_ascii=False).encode()


UNAUTHORIZED = Problem(
    401,
    "The key is missing or wrong: send the header Authorization: Bearer <MCP_API_KEY>, or open a whole link.",
    {"WWW-Authenticate": "Bearer"},
)
NOT_ACCEPTED = Problem(415, "The Accept header must name both application/json and text/event-stream.")
NOT_JSON = Problem(415, "The Content-Type header must be application/json.")
SERVER_ERROR = Problem(
    500, "The service failed while it handled this request. The request id is in its log; try again."
)


def bad_request(detail: str) -> Problem:
    return Problem(400, detail)


def too_large(limit: int) -> Problem:
    return Problem(413, f"The body is over the limit of {limit // 1024**2} MB. Send less, or in parts.")


def not_allowed(*methods: str) -> Problem:
    allow = ", ".join(methods)
    return Problem(405, f"This address answers to {allow} only.", {"Allow": allow})
