"""The one shape of an HTTP error: application/problem+json (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"
ASLEEP = "urn:cubicle:problem:asleep"
"""The chat's sandbox is not up, and what was asked for does not start it."""
NO_SANDBOX = "urn:cubicle:problem:no-sandbox"
"""The chat has no sandbox, and what was asked for does not make one."""

NOT_STARTED = "urn:cubicle:problem:not-started"
"""The program that was asked for does not run, and to look for it does not start it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, for the client. `detail` says what to do, and never holds a stack, a host path or a secret."""

    status: int
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = "about:blank"
    """What programs tell it by, where the status does not say it all."""
    more: Mapping[str, str] = field(default_factory=dict)
    """What such programs are told besides."""

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    @property
    def members(self) -> dict[str, Any]:
        return {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail, **self.more}

    def body(self) -> bytes:
        return json.dumps(self.members, ensure_ascii=False).encode()


UNAUTHORIZED = Problem(
    401,
    "The key is missing or wrong: send the header Authorization: Bearer <MCP_API_KEY>, or open a whole link.",
    {"WWW-Authenticate": "Bearer"},
)
ANOTHERS_CHAT = Problem(403, "This chat is the workspace of another person.")
VIEW_ONLY = Problem(
    403, "This link only lets you look. Sign in with the key, or ask for a link that lets you control the chat."
)
OUT_OF_SCOPE = Problem(403, "This link opens one file or the replay of this chat, and nothing else of it.")
NOT_ACCEPTED = Problem(415, "The Accept header must name both application/json and text/event-stream.")
NOT_JSON = Problem(415, "The Content-Type header must be application/json.")
SERVER_ERROR = Problem(
    500, "The service failed while it handled this request. The request id is in its log; try again."
)

DRAINING = Problem(
    503,
    "The service is about to be restarted, and takes no new work. Nothing was done. Try again in a minute.",
    {"Retry-After": "15"},
)


def too_many_tries(seconds: int) -> Problem:
    detail = f"Too many wrong keys came from this address, or this one too often. Try again in {seconds} seconds."
    return Problem(429, detail, {"Retry-After": str(seconds)})


def bad_request(detail: str) -> Problem:
    return Problem(400, detail)


def asleep(reason: str) -> Problem:
    how = "A tool call wakes it; so does this address with wake=1 in its query."
    return Problem(409, f"{reason} {how}", type=ASLEEP, more={"reason": reason})


def too_large(limit: int) -> Problem:
    return Problem(413, f"The body is over the limit of {limit // 1024**2} MB. Send less, or in parts.")


def not_allowed(*methods: str) -> Problem:
    allow = ", ".join(methods)
    return Problem(405, f"This address answers to {allow} only.", {"Allow": allow})
