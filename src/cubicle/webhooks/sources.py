"""What tells the webhooks of events: the parts of the service call these, and know nothing of webhooks."""

from __future__ import annotations

import functools
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from cubicle.core.api_keys import ApiKey
from cubicle.core.chat import Chat
from cubicle.webhooks.events import Event, EventType
from cubicle.webhooks.store import KeyUse
from cubicle.webhooks.webhooks import Webhooks

K = TypeVar("K")
V = TypeVar("V")

QUIET_SECONDS = 3600.0
"""A limit that goes on being reached is told once in this time."""
_MAX_REMEMBERED = 20_000
_SANDBOX = {
    "created": EventType.SANDBOX_STARTED,
    "started": EventType.SANDBOX_STARTED,
    "stopped": EventType.SANDBOX_STOPPED,
    "failed": EventType.SANDBOX_FAILED,
    "removed": EventType.SANDBOX_REMOVED,
}


class EventSources:
    """Turns what happens into events."""

    def __init__(self, webhooks: Webhooks, clock: Callable[[], float] = time.monotonic) -> None:
        self._webhooks = webhooks
        self._clock = clock
        self._told: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._used: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def sandbox_changed(self, chat: Chat, what: str, reason: str) -> None:
        """It is on disk before whoever did it hears that it is done."""
        kind = _SANDBOX.get(what)
        if kind is None or not self._webhooks.enabled:
            return
        new = what == "created" if kind is EventType.SANDBOX_STARTED else None
        self._webhooks.emit(Event(kind, chat.tenant, {"chat": chat.id, "reason": reason or None, "new": new}))
        await self._webhooks.settle()

    def quota_reached(self, tenant: str, user: str | None, limit: str, scope: str) -> None:
        """Told once an hour for each limit of a tenant or user."""
        who = user if scope == "user" else None
        key, now = (tenant, who or "", limit, scope), self._clock()
        if not self._webhooks.enabled or now - self._told.get(key, -QUIET_SECONDS) < QUIET_SECONDS:
            return
        _remember(self._told, key, now)
        data = {"limit": limit, "scope": scope, "user": who}
        self._webhooks.emit(Event(EventType.QUOTA_REACHED, tenant, data))

    async def isolation_failed(self, complaint: str, *, serves: bool) -> None:
        self._webhooks.emit(Event(EventType.ISOLATION_CHECK_FAILED, "", {"reason": complaint, "serves": serves}))
        await self._webhooks.settle()

    def key_used(self, key: ApiKey, address: str) -> None:
        network = network_of(address)
        pair = (key.id, network)
        if not self._webhooks.enabled or pair in self._used:
            return
        _remember(self._used, pair, None)
        data = {"key": key.id, "role": key.role.value, "label": key.label or None, "network": network}
        told, first = (
            Event(EventType.KEY_NEW_NETWORK, key.tenant, {**data, "first": is_first}) for is_first in (False, True)
        )
        self._webhooks.emit_key_use(KeyUse(key.id, network, told, first))


def _remember(known: OrderedDict[K, V], key: K, value: V) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > _MAX_REMEMBERED:
        known.popitem(last=False)


@functools.lru_cache(4096)
def network_of(address: str) -> str:
    """What counts as one network: the /24 of an IPv4 address, the /48 of an IPv6 one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(ipaddress.ip_network((found, 24 if found.version == 4 else 48), strict=False))
