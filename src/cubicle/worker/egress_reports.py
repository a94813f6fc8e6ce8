"""What the network worker reports of the egress proxy with each ping, and what it is told to hold back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cubicle.audit.audit import Audit
from cubicle.core.chat import Chat
from cubicle.egress.tally import EgressReport
from cubicle.metrics.metrics import Metrics
from cubicle.worker.channel import Fields

log = logging.getLogger(__name__)

_MAX_REPORTS = 1000
_DECISIONS = ("allowed", "denied", "failed")
_AGAIN_SECONDS = 1.0
_MAX_TEXT = 256
_MAX_TOLD = 50_000


class EgressReports:
    """One object for all workers, one after the other."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[EgressReport], None]] = []
        self.decide: Callable[[Chat, str, Mapping[str, Any]], None] = lambda chat, decision, fields: None
        """Called with each decision that the worker tells of: those of a chat that makes very many are only counted."""
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


class AuditedEgress:
    """Has the audit log tell of each decision. What a chat repeats within a second is counted, and so is what the
    worker did not tell of because it was too much."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._repeats = audit.repeats(self._record, _AGAIN_SECONDS)
        self._told: Counter[tuple[str, str]] = Counter()
        """Decisions of each chat since its last report."""

    def decide(self, chat: Chat, decision: str, fields: Mapping[str, Any]) -> None:
        if decision not in _DECISIONS or not self._audit.keeps:
            return
        if len(self._told) > _MAX_TOLD:
            self._told.clear()  # a worker that ended did not report them
        self._told[chat.digest, decision] += 1
        said = {name: str(fields.get(name, ""))[:_MAX_TEXT] for name in ("host", "port", "protocol", "rule", "reason")}
        key = (chat.digest, decision, said["host"], said["port"], said["protocol"])
        wide = ((chat.digest, decision), (chat, {"decision": decision, "left_out": True}))
        self._repeats.add(key, (chat, {"decision": decision, **said}), wide=wide)

    def take(self, report: EgressReport) -> None:
        """A report counts every decision: what it has more than was told of is told of as a number."""
        for decision in _DECISIONS:
            more = getattr(report.tally, decision) - self._told.pop((report.chat.digest, decision), 0)
            if more > 0:
                self._audit.record("egress", {"decision": decision, "count": more, "left_out": True}, chat=report.chat)

    def _record(self, key: tuple[str, ...], about: tuple[Chat, Mapping[str, Any]], count: int) -> None:
        chat, said = about
        self._audit.record("egress", {**said, "count": count}, chat=chat)
