"""The events that receivers are told of, and the message that each becomes."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAX_TEXT = 500
"""Characters of one text in an event; most come from outside."""


class EventType(StrEnum):
    SANDBOX_STARTED = "sandbox.started"
    SANDBOX_STOPPED = "sandbox.stopped"
    SANDBOX_FAILED = "sandbox.failed"
    SANDBOX_REMOVED = "sandbox.removed"
    QUOTA_REACHED = "quota.reached"
    ISOLATION_CHECK_FAILED = "isolation.check_failed"
    KEY_NEW_NETWORK = "key.new_network"
    TEST = "webhook.test"


def new_id() -> str:
    """Stays the same at each delivery of an event, so that a receiver can tell a second one."""
    return f"msg_{secrets.token_hex(14)}"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. An event of the whole service has no tenant."""

    type: EventType
    tenant: str
    data: Mapping[str, str | bool | int | None]
    at: float = field(default_factory=time.time)
    id: str = field(default_factory=new_id)

    def body(self) -> bytes:
        """The message: `type`, `timestamp`, `data`, in ASCII whatever the texts are."""
        data = {name: _short(value) for name, value in self.data.items() if value is not None}
        if self.tenant:
            data = {"tenant": _short(self.tenant), **data}
        message = {"type": self.type.value, "timestamp": _date(self.at), "data": data}
        return json.dumps(message, separators=(",", ":")).encode()


def _short(value: str | bool | int | None) -> str | bool | int | None:
    """Without half of a character that UTF-16 writes as two: not every JSON parser takes that."""
    return value[:MAX_TEXT].encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _date(at: float) -> str:
    whole = int(at)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((at - whole) * 1000):03}Z"
