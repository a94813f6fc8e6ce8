"""The audit log of one service, and what tells it of something: made once, and connected to the parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cubicle import removal
from cubicle.audit.audit import Audit
from cubicle.chat.access import Access
from cubicle.chat.journal_notes import JournalNotes
from cubicle.chat.key_attempts import network_of
from cubicle.core.api_keys import ApiKey
from cubicle.core.chat import Chat
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.lifecycle import LifecycleEvent
from cubicle.settings import Settings
from cubicle.tools.audited import audited
from cubicle.tools.registry import Registry
from cubicle.worker.egress_reports import AuditedEgress
from cubicle.worker.network import NetworkWorker

_OUR_REASONS = ("stopped", "removed", "deleted")
"""What the reason of is a sentence of the service, and nothing that a sandbox said."""
_MAX_REASON = 200


class Auditing:
    """Give `tools` the tools, and `audit` to the middleware."""

    def __init__(
        self,
        settings: Settings,
        access: Access,
        network: NetworkWorker,
        notes: JournalNotes,
        own: Callable[[Path], Path] = lambda path: path,
    ) -> None:
        """`own`: where one of several processes has a log of its own."""
        self.audit = Audit(
            own(removal.audit_folder(settings.data_dir)),
            access.secret,
            mode=settings.audit,
            limit=settings.audit_mb << 20,
            max_age=settings.audit_days * 86400,
        )
        egress = AuditedEgress(self.audit)
        network.egress.decide = egress.decide
        network.egress.listen(egress.take)
        notes.told = self._taken_over
        access.key_watch.changed = self._key_changed

    def follow(self, fleet: Fleet) -> None:
        """From now on, tell of what becomes of sandboxes."""
        fleet.lifecycle.listen(self._lifecycle)
        self.audit.attend(fleet.lifecycle.reading)

    def tools(self, registry: Registry) -> Registry:
        """The same tools, told of."""
        return audited(registry, self.audit)

    def port_link_used(self, chat: Chat, token: str, address: str) -> None:
        """Raises AuditUnavailable."""
        self.audit.require()
        fields = {"what": "port", "link": self.audit.digest("link", token), "network": network_of(address)}
        self.audit.record("link_use", fields, chat=chat)

    def _lifecycle(self, event: LifecycleEvent) -> None:
        fields = {"what": event.what}
        if event.what in _OUR_REASONS and event.reason:
            fields["reason"] = event.reason[:_MAX_REASON]
        if event.chat is None:
            fields["chat"] = self.audit.folder_digest(event.digest)
        self.audit.record("lifecycle", fields, chat=event.chat)

    def _taken_over(self, chat: Chat, what: str, user: str) -> None:
        self.audit.record("takeover", {"what": what, **({"name": user} if user else {})}, chat=chat)

    def _key_changed(self, change: str, key: ApiKey) -> None:
        fields = {"what": change, "tenant": key.tenant, "key": key.id, "role": key.role.value}
        self.audit.record("key", fields | ({"expires": key.expires} if key.expires else {}))
