"""Whose page may reach the service: the Origin of a WebSocket or of a request that changes something."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def origin_of(url: str) -> str | None:
    """The origin of an address, in one spelling; None if it has none."""
    try:
        parts = urlsplit(url.strip())
        scheme, host = parts.scheme.lower(), parts.hostname
        port = parts.port or _PORTS.get(scheme)
    except ValueError:
        return None
    if scheme not in _PORTS or not host or port is None:
        return None
    return f"{scheme.replace('ws', 'http')}://{host}:{port}"


def origin_is_ours(origin: str | None, host: str | None, known: Iterable[str] = ()) -> bool:
    """Whether a page of this origin is one of the service's own.

    No Origin at all is no page: a program, which the key alone judges. `null` is the origin of sandboxed content, the
    files that a model made among it. A page counts as ours if it came from the very host and port that it now talks to
    (behind a proxy that ends TLS the scheme differs), or from one of the known addresses.
    """
    if origin is None:
        return True
    sent = origin_of(origin)
    if sent is None:
        return False
    if any(sent == origin_of(address) for address in known):
        return True
    scheme = sent.partition(":")[0]
    return bool(host) and sent == origin_of(f"{scheme}://{host}")
