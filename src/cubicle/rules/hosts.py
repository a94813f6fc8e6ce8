"""Which Host and Origin headers are ours, when the operator has named them (against DNS rebinding)."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit


def host_is_known(allowed: Sequence[str], host: str | None) -> bool:
    """Without a list every host is known. A name in the list covers every port; `name:port` only that one."""
    if not allowed:
        return True
    full = (host or "").lower()
    name = _without_port(full)
    return any(known.lower() in (full, name) for known in allowed)


def origin_is_known(allowed: Sequence[str], origin: str | None) -> bool:
    """A request that names no origin is not from a page."""
    if not allowed or not origin:
        return True
    try:
        return host_is_known(allowed, urlsplit(origin).netloc)
    except ValueError:
        return False


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
