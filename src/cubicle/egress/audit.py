"""One line for each decision and each end: who, where to, which rule, how much. Never a header, a query or a body."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

from cubicle.core.chat import Chat
from cubicle.egress.blocked_networks import Address
from cubicle.egress.policy import Request
from cubicle.log import chat_fields

LOGGER = "cubicle.egress"
log = logging.getLogger(LOGGER)

_MAX_LENGTH = 200


class AuditEvent(StrEnum):
    ALLOWED = "allowed"
    DENIED = "denied"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class AuditLog:
    """What is written down about one request."""

    chat: Chat
    request: Request
    protocol: str
    """How it came: connect, socks5, http, or https where the proxy looks inside."""

    def record(
        self,
        event: AuditEvent,
        *,
        rule: str = "",
        reason: str = "",
        address: Address | None = None,
        **numbers: float,
    ) -> None:
        """Write the line."""
        target = self.request.target
        fields: dict[str, object] = {**chat_fields(self.chat), "protocol": self.protocol}
        fields |= {"host": target.host, "port": target.port}
        if self.request.scheme is not None:
            path = self.request.path.partition("?")[0]
            fields |= {"method": self.request.method[:32], "path": path[:_MAX_LENGTH]}
        told = {"address": str(address or ""), "rule": rule, "reason": reason[:_MAX_LENGTH]}
        fields |= {name: text for name, text in told.items() if text}
        fields |= numbers
        log.log(logging.WARNING if event is AuditEvent.DENIED else logging.INFO, "egress %s", event.value, extra=fields)
