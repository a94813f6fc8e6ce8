"""Which Host and Origin headers are ours (against DNS rebinding)."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

UNKNOWN_HOST = "The service does not answer to this Host. Name it in ALLOWED_HOSTS or PUBLIC_BASE_URL, or set a key."
UNKNOWN_ORIGIN = "This page is not one of the service's own: its Origin is refused (ALLOWED_HOSTS names more)."
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "host.docker.internal", "host.containers.internal")
"""How programs of this machine, and of its containers, call it. No stranger can make a name of these point here."""


def names_of_this_machine(host: str, public_base_url: str) -> tuple[str, ...]:
    """The names of a service that listens on loopback only; none (any name will do) for one that listens wider."""
    if f"[{host}]" not in LOOPBACK and host != "localhost" and not host.startswith("127."):
        return ()
    own = host if ":" not in host else f"[{host}]"
    return tuple(dict.fromkeys(name for name in (*LOOPBACK, own, urlsplit(public_base_url).hostname) if name))


def host_is_known(allowed: Sequence[str], host: str | None) -> bool:
    """Without a list every host is known. A name in the list covers every port; `name:port` only that one."""
    if not allowed:
        return True
    full = (host or "").lower()
    name = without_port(full)
    return any(known.lower() in (full, name) for known in allowed)


def origin_is_known(allowed: Sequence[str], origin: str | None) -> bool:
    """A request that names no origin is not from a page."""
    if not allowed or not origin:
        return True
    try:
        return host_is_known(allowed, urlsplit(origin).netloc)
    except ValueError:
        return False


def without_port(host: str) -> str:
    """The name of a `name:port`."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def ascii_name(name: str) -> str | None:
    """A host name in ASCII and lower case, as DNS has it (IDNA); None for what is no name in any script."""
    if name.isascii():
        return name.lower()
    try:
        return name.encode("idna").decode().lower()
    except UnicodeError:
        return None
