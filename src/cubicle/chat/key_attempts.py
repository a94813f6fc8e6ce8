"""Wrong API keys, limited per address and per key: who guesses waits longer and longer, and costs little meanwhile."""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import Storage
from limits.strategies import FixedWindowRateLimiter

from cubicle.core.api_keys import ApiKey
from cubicle.core.keys import NO_KEY_NEEDED, KeyRing, bearer_key

_MAX_COUNTERS = 20_000
"""Of addresses, and of keys: what is counted beyond takes the place of the oldest, so memory is bounded."""
_MAX_KNOWN = 10_000
_SAME_KEY = 3
"""A wrong key may come so many times as often as wrong keys from one address: from the machines of a whole office."""


class TooManyAttempts(Exception):
    """So many wrong keys came that no new one is looked at for a while."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"Too many wrong keys. Try again in {seconds} seconds.")
        self.seconds = seconds


class BoundedCounters(Storage):
    """Counters that expire, at most so many. The storage that comes with `limits` grows with the number of addresses,
    and goes by a clock that can jump."""

    STORAGE_SCHEME = None

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._counters: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counters)

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        count, until = self._live(key)
        if not count:
            until = self._clock() + expiry
            while len(self._counters) >= self._most:
                self._counters.popitem(last=False)
        self._counters[key] = (count + amount, until)
        return count + amount

    def get(self, key: str) -> int:
        return self._live(key)[0]

    def get_expiry(self, key: str) -> float:
        return self._live(key)[1]

    def check(self) -> bool:
        return True

    def reset(self) -> int:
        count = len(self._counters)
        self._counters.clear()
        return count

    def clear(self, key: str) -> None:
        self._counters.pop(key, None)

    def _live(self, key: str) -> tuple[int, float]:
        now = self._clock()
        count, until = self._counters.get(key, (0, now))
        if until <= now:
            self._counters.pop(key, None)
            return 0, now
        return count, until


class KeyAttempts:
    """Asks the key ring, and counts wrong keys.

    A key that has opened something from an address is always looked at there, so whoever guesses beside a client, or
    behind the same proxy, does not lock it out.
    """

    def __init__(self, ring: KeyRing, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._ring = ring
        self._clock = clock
        self._tiers = _tiers(per_minute)
        self._key_tiers = _tiers(per_minute * _SAME_KEY)
        self._addresses = FixedWindowRateLimiter(BoundedCounters(_MAX_COUNTERS, clock))
        self._keys = FixedWindowRateLimiter(BoundedCounters(_MAX_COUNTERS, clock))
        self._known: OrderedDict[str, None] = OrderedDict()
        self._secret = secrets.token_bytes(32)
        self.on_new_address: Callable[[ApiKey, str], None] = lambda key, address: None
        """Told when a key is used from an address at which it was not seen lately."""

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._ring)

    @property
    def version(self) -> int:
        """Changes with the keys."""
        return self._ring.version

    def works(self, id: str) -> bool:
        """Whether the key of this id works now."""
        return self._ring.of_id(id) is not None

    def shown(self, authorization: str | None, address: str | None) -> ApiKey | None:
        """The key in this Authorization header; None when it opens nothing. Raises TooManyAttempts."""
        if not self._ring:
            return NO_KEY_NEEDED
        key = bearer_key(authorization)
        return None if key is None else self.opens(key, address)

    def opens(self, key: str, address: str | None) -> ApiKey | None:
        """The key that somebody at this address shows, if it works. Raises TooManyAttempts."""
        place = network_of(address)
        pair = self._digest(f"{place} {key}")
        if pair not in self._known:
            self._require(self._addresses, self._tiers, place)
        found = self._ring.opens(key)
        if found is not None:
            if pair not in self._known:
                self.on_new_address(found, address or "")
            self._remember(pair)
            return found
        digest = self._digest(key)
        self._require(self._keys, self._key_tiers, digest)
        for tier in self._tiers:
            self._addresses.hit(tier, place)
        for tier in self._key_tiers:
            self._keys.hit(tier, digest)
        return None

    def _require(self, counted: FixedWindowRateLimiter, tiers: tuple[RateLimitItem, ...], who: str) -> None:
        """The longest wait of the tiers that are used up, if any."""
        ends = [counted.get_window_stats(tier, who).reset_time for tier in tiers if not counted.test(tier, who)]
        if ends:
            raise TooManyAttempts(max(1, math.ceil(max(ends) - self._clock())))

    def _remember(self, pair: str) -> None:
        self._known[pair] = None
        self._known.move_to_end(pair)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def _digest(self, text: str) -> str:
        """No key is kept as it is, and nobody can choose texts that meet."""
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=16).hexdigest()


def _tiers(per_minute: int) -> tuple[RateLimitItem, ...]:
    """Whoever goes on after each wait waits a minute, ten minutes, an hour."""
    if not per_minute:
        return ()
    return (
        RateLimitItemPerMinute(per_minute),
        RateLimitItemPerMinute(per_minute * 3, 10),
        RateLimitItemPerHour(per_minute * 6),
    )


@functools.lru_cache(4096)
def network_of(address: str | None) -> str:
    """What counts as one address: of IPv6 the /64 that one customer has whole."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return "other"
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return str(found)
