"""The header with which one member of a service passes a request on to another: signed, short-lived, for it alone."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

HEADER = b"cubicle-hop"
MAX_AGE = 30.0
"""Seconds that one works. The clocks of two hosts may differ by as much."""
_MAX_LENGTH = 2048
_MAX_ID = 64
_MAX_SEEN = 100_000
_PURPOSE = b"cubicle hop 1"


class BadHop(Exception):
    """The header was not made by a member for this request; the message says why."""


class UnknownKey(BadHop):
    """It was not signed by a member, or with a secret that is not known here."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A request that was passed on."""

    sender: str
    """The member that the client reached."""
    to: str
    """The member that answers."""
    scheme: str
    """As the client sees it."""
    client: tuple[str, int] | None
    """The client's address."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of this request alone."""


class SeenHops:
    """Remembers hops for as long as they work: each is good for one request. Of very many the first are forgotten."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._by_time: deque[tuple[float, str]] = deque()

    def is_new(self, hop: Hop, now: float) -> bool:
        """Whether it comes for the first time. `now`: of a clock that nobody sets."""
        while self._by_time and (self._by_time[0][0] < now - 2 * MAX_AGE or len(self._by_time) >= _MAX_SEEN):
            self._ids.discard(self._by_time.popleft()[1])
        if hop.id in self._ids:
            return False
        self._ids.add(hop.id)
        self._by_time.append((now, hop.id))
        return True


def signed(key: bytes, hop: Hop, method: str, target: bytes, now: float) -> bytes:
    """The value of the header, for this method and target alone."""
    names = {"from": hop.sender, "to": hop.to, "id": hop.id}
    fields = {**names, "scheme": hop.scheme, "client": hop.client, "at": round(now, 3)}
    body = base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode())
    return body + b"." + _mac(key, body, method, target)


def opened(keys: Sequence[bytes], value: bytes, method: str, target: bytes, to: str, now: float) -> Hop:
    """What the header says. Raises BadHop."""
    body, _, mac = value.partition(b".")
    if len(value) > _MAX_LENGTH:
        raise BadHop("It is too long.")
    if not any(hmac.compare_digest(_mac(key, body, method, target), mac) for key in keys):
        raise UnknownKey("It was not signed by a member for this request.")
    try:
        fields = json.loads(base64.urlsafe_b64decode(body))
        client = None if fields["client"] is None else (str(fields["client"][0]), int(fields["client"][1]))
        words = [str(fields[name]) for name in ("from", "to", "scheme")]
        hop, at = Hop(words[0], words[1], words[2], client, str(fields["id"])[:_MAX_ID]), float(fields["at"])
    except (ValueError, TypeError, LookupError, binascii.Error, RecursionError):
        raise BadHop("It cannot be read.") from None
    if hop.to != to:
        raise BadHop("It is for another member.")
    if not abs(now - at) <= MAX_AGE:
        raise BadHop(f"It has expired, or the clocks of the members differ: it is {now - at:.0f} seconds old.")
    return hop


def _mac(key: bytes, body: bytes, method: str, target: bytes) -> bytes:
    text = b"\n".join((_PURPOSE, body, method.encode("utf-8", "replace"), target))
    return hmac.digest(key, text, "sha256").hex().encode()
