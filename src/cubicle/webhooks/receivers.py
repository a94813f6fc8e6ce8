"""WEBHOOKS_FILE: who is told of which events. The operator alone writes it; no tenant names a URL."""

from __future__ import annotations

import base64
import binascii
import logging
import re
import ssl
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cubicle.record import BadRecord, read_bytes
from cubicle.webhooks.events import Event, EventType

log = logging.getLogger(__name__)

MAX_RECEIVERS = 20
_MAX_SIZE = 256 * 1024
_MAX_SECRETS = 3
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_FIELDS = frozenset({"name", "url", "secret", "events", "tenants", "ca_file"})
SECRET_PREFIX = "whsec_"  # noqa: S105 — of every secret of the scheme
_SECRET_BYTES = range(24, 65)


class BadReceivers(Exception):
    """WEBHOOKS_FILE cannot be used; the message says why, and never shows a secret or a URL."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """One who is told of events."""

    name: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """Each message is signed by all of them, so that they can be exchanged without a gap."""
    events: tuple[str, ...] = ("*",)
    tenants: tuple[str, ...] = ()
    """Whose events; none named: those of all tenants and of the service itself."""
    ca_file: Path | None = None
    tls: ssl.SSLContext | None = field(default=None, compare=False, repr=False)

    def wants(self, event: Event) -> bool:
        if self.tenants and event.tenant not in self.tenants:
            return False
        kind = event.type.value
        return any(one in ("*", kind) or (one.endswith(".*") and kind.startswith(one[:-1])) for one in self.events)

    @property
    def host(self) -> str:
        """What of the URL may be shown: its path can hold a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def read(path: Path) -> tuple[Receiver, ...]:
    """The receivers. Raises BadReceivers. Blocks."""
    try:
        content = read_bytes(path.resolve(), _MAX_SIZE)
        read_by_all = stat.S_IMODE(path.stat().st_mode) & 0o007
    except (OSError, BadRecord) as error:
        why = (error.strerror if isinstance(error, OSError) else str(error)) or "unknown error"
        raise BadReceivers(f"WEBHOOKS_FILE cannot be read: {why}.") from None
    if read_by_all:
        log.warning("WEBHOOKS_FILE holds secrets, and everybody on this machine may read it: chmod 600")
    return parse(content)


def parse(content: bytes) -> tuple[Receiver, ...]:
    """Raises BadReceivers. Blocks: it reads the certificates that the file names."""
    try:
        told: dict[str, Any] = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        # The parser's own words name a line, and no value.
        where = re.search(r"at line \d+", str(error))
        raise BadReceivers(f"WEBHOOKS_FILE is not TOML{', ' + where[0] if where else ''}.") from None
    rows = told.pop("receiver", [])
    if told:
        raise BadReceivers(f"WEBHOOKS_FILE: {_named(told)} is unknown. Each receiver is a [[receiver]].")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadReceivers("WEBHOOKS_FILE: each receiver begins with [[receiver]], in two brackets.")
    if len(rows) > MAX_RECEIVERS:
        raise BadReceivers(f"WEBHOOKS_FILE has {len(rows)} receivers; at most {MAX_RECEIVERS} are possible.")
    found = tuple(_receiver(number, row) for number, row in enumerate(rows, 1))
    if len({one.name for one in found}) < len(found):
        raise BadReceivers("WEBHOOKS_FILE: two receivers have the same name.")
    return found


def _receiver(number: int, row: Mapping[str, Any]) -> Receiver:
    name = row.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadReceivers(
            f"WEBHOOKS_FILE, receiver {number}: name has to be 1 to 40 lower-case letters, digits, - and _."
        )
    where = f"WEBHOOKS_FILE, receiver {name}"
    if unknown := row.keys() - _FIELDS:
        raise BadReceivers(f"{where}: {_named(unknown)} is unknown.")
    kinds = [kind.value for kind in EventType]
    events = _texts(where, row, "events", ("*",))
    for one in events:
        fits = one == "*" or one in kinds or (one.endswith(".*") and any(kind.startswith(one[:-1]) for kind in kinds))
        if not fits:
            raise BadReceivers(f"{where}: events names one that does not exist. There are: {', '.join(kinds)}.")
    ca_file = row.get("ca_file")
    if ca_file is not None and not isinstance(ca_file, str):
        raise BadReceivers(f"{where}: ca_file has to be a path.")
    url = _url(where, row.get("url"))
    authority = Path(ca_file) if ca_file else None
    return Receiver(
        name,
        url,
        _secrets(where, row),
        events,
        _texts(where, row, "tenants", ()),
        authority,
        _tls(where, authority) if url.startswith("https:") else None,
    )


def _url(where: str, url: object) -> str:
    wrong = BadReceivers(
        f"{where}: url has to be one in ASCII that starts with https:// or http://, without a user's name in it."
    )
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url or len(url) > 2000:
        raise wrong
    try:
        parts = urlsplit(url)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.port == 0
    except ValueError:
        bad = True
    if bad:
        raise wrong
    return url


def _secrets(where: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    given = row.get("secret")
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not 1 <= len(found) <= _MAX_SECRETS or not all(_is_secret(one) for one in found):
        raise BadReceivers(
            f"{where}: secret has to be {SECRET_PREFIX} and 24 to 64 bytes in base64, or a list of at most "
            f"{_MAX_SECRETS}. `cubicle webhooks secret` makes one."
        )
    return tuple(found)


def _is_secret(secret: object) -> bool:
    if not isinstance(secret, str) or not secret.startswith(SECRET_PREFIX):
        return False
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        return len(base64.b64decode(text + "=" * (-len(text) % 4), validate=True)) in _SECRET_BYTES
    except (binascii.Error, ValueError):
        return False


def _texts(where: str, row: Mapping[str, Any], name: str, unset: tuple[str, ...]) -> tuple[str, ...]:
    found = row.get(name)
    if found is None:
        return unset
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise BadReceivers(f"{where}: {name} has to be a list of texts. Leave it out for all.")
    return tuple(found)


def _tls(where: str, ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError):
        raise BadReceivers(f"{where}: ca_file cannot be read, or holds no certificate.") from None


def _named(names: Any) -> str:
    """The first of them, as it may be shown."""
    return repr(str(min(names, key=str))[:40])
