"""What the network worker reports of the egress proxy with each ping, and what it is told to hold back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from cubicle.egress.tally import EgressReport
from cubicle.metrics.metrics import Metrics
from cubicle.worker.channel import Fields

log = logging.getLogger(__name__)

_MAX_REPORTS = 1000


class EgressReports:
    """One object for all workers, one after the other."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[EgressReport], None]] = []
        self.spent_tenants: Sequence[str] = ()
        self.spent_chats: Sequence[str] = ()
        """Digests. Both are told to the worker with the next ping."""

    def listen(self, listener: Callable[[EgressReport], None]) -> None:
        """Call back with each report; the listener must not wait."""
        self._listeners.append(listener)

    def take(self, answer: Fields) -> None:
        """The worker's answer to a ping. It handles hostile bytes: what is no report is left out."""
        packed: Any = answer.get("egress", ())
        if not isinstance(packed, list):
            return
        for each in packed[:_MAX_REPORTS]:
            try:
                report = EgressReport.parse(each)
            except (ValueError, TypeError):
                log.error("the network worker sent a report of egress that cannot be read")
                return
            for listener in self._listeners:
                listener(report)


def counted_by(metrics: Metrics) -> Callable[[EgressReport], None]:
    """A listener that adds each report to the metrics."""

    def count(report: EgressReport) -> None:
        tally = report.tally
        for decision in ("allowed", "denied", "failed"):
            metrics.egress_decided(decision, getattr(tally, decision), report.chat.tenant, report.chat.id)
        metrics.egress_bytes.labels("sent").inc(tally.sent)
        metrics.egress_bytes.labels("received").inc(tally.received)

    return count
