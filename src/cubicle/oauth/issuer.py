"""One authorization server as the service knows it: its metadata and its signing keys, kept fresh off the hot path."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from joserfc import jwk
from joserfc.errors import JoseError, SecurityWarning

from cubicle.oauth.documents import BadDocument, fetch_json
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

FRESH_SECONDS = 600.0
"""The keys are fetched again so often: a key that the issuer took away is not taken for longer."""
RETRY_SECONDS = 15.0
REFETCH_SECONDS = 10.0
"""At most so often for a key that is not known: whoever invents key ids does not make the service ask."""
STALE_SECONDS = 24 * 3600.0
"""An issuer that is down for longer may have taken keys away meanwhile: its tokens are taken no more."""
_MAX_KEYS = 100
_MIN_RSA_BITS = 2048

Key = jwk.RSAKey | jwk.ECKey | jwk.OKPKey
_KINDS: dict[str, type[Key]] = {"RSA": jwk.RSAKey, "EC": jwk.ECKey, "OKP": jwk.OKPKey}
_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class IssuerUnavailable(Exception):
    """The issuer's keys are not known, and cannot be fetched now."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What an issuer says of itself (RFC 8414, OpenID Connect Discovery)."""

    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    end_session_endpoint: str = ""
    names_itself: bool = False
    """It sends `iss` back with the code (RFC 9207)."""


class Issuer:
    """Between `async with` a task keeps the keys fresh. The URL is the issuer's `iss`, character for character."""

    def __init__(self, url: str, web: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self.generation = 0
        """Counts the sets of keys: what was verified with an earlier one is verified again."""
        self._web = web
        self._clock = clock
        self._keys: dict[str | None, list[Key]] = {}
        self._metadata: Metadata | None = None
        self._thumbprints: frozenset[str] = frozenset()
        self._good_at = self._asked_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._refreshing = start_task(self._keep_fresh(), name="keys of an issuer")
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in (self._refreshing, self._fetching):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def key(self, kid: str | None, algorithm: str) -> Key | None:
        """The key that a token names, fetched if it must be; None when there is no such. Raises IssuerUnavailable."""
        if self._is_stale():
            await self._fetch_soon(RETRY_SECONDS if self._keys else 1.0)
            if self._is_stale():
                raise IssuerUnavailable
        found = self._find(kid, algorithm)
        if found is None and kid is not None:
            await self._fetch_soon(REFETCH_SECONDS)
            found = self._find(kid, algorithm)
        return found

    async def metadata(self) -> Metadata:
        """Raises IssuerUnavailable."""
        if self._metadata is None:
            await self._fetch_soon(1.0)
        if self._metadata is None:
            raise IssuerUnavailable
        return self._metadata

    def _is_stale(self) -> bool:
        return not self._keys or self._clock() - self._good_at > STALE_SECONDS

    def _find(self, kid: str | None, algorithm: str) -> Key | None:
        """Of the kind that the algorithm needs. A token that names no key must leave no choice."""
        fitting = self._keys.get(kid, []) if kid is not None else [key for keys in self._keys.values() for key in keys]
        kind = _TYPES.get(algorithm[:2])
        fitting = [key for key in fitting if key.key_type == kind and key.get("alg") in (None, algorithm)]
        return fitting[0] if len(fitting) == 1 else None

    async def _fetch_soon(self, pause: float) -> None:
        """Wait for the fetch that is under way, or make one if the last is long enough ago."""
        if self._fetching is None or self._fetching.done():
            if self._clock() - self._asked_at < pause:
                return
            self._fetching = start_task(self._fetch(), name="fetch of an issuer's keys")
        await asyncio.wait([self._fetching])

    async def _keep_fresh(self) -> None:
        while True:
            await self._fetch_soon(0)
            await asyncio.sleep(FRESH_SECONDS if self._clock() - self._good_at < FRESH_SECONDS else RETRY_SECONDS)

    async def _fetch(self) -> None:
        self._asked_at = self._clock()
        try:
            metadata = await self._fetch_metadata()
            keys = read_keys(await fetch_json(self._web, metadata.jwks_uri))
        except BadDocument as error:
            log.warning("the keys of an OAuth issuer could not be fetched: %s", error, extra={"issuer": self.url})
            return
        thumbprints = frozenset(f"{kid} {key.thumbprint()}" for kid, group in keys.items() for key in group)
        if thumbprints != self._thumbprints:
            self.generation += 1
            log.info("keys of an OAuth issuer", extra={"issuer": self.url, "keys": len(thumbprints)})
        self._keys, self._thumbprints, self._metadata, self._good_at = keys, thumbprints, metadata, self._clock()

    async def _fetch_metadata(self) -> Metadata:
        """By OpenID Connect Discovery; from a server that has no such document, by RFC 8414."""
        parts = urlsplit(self.url)
        plain_oauth = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{parts.path.rstrip('/')}"
        try:
            document = await fetch_json(self._web, f"{self.url.rstrip('/')}/.well-known/openid-configuration")
        except BadDocument as error:
            if error.status != 404:
                raise
            document = await fetch_json(self._web, plain_oauth)
        return read_metadata(self.url, document)


def read_metadata(issuer: str, document: Mapping[str, Any]) -> Metadata:
    """Raises BadDocument: for the metadata of somebody else, and for URLs that are less safe than the issuer's own."""
    if document.get("issuer") != issuer:
        raise BadDocument(f"its metadata names another issuer than {issuer}")
    scheme = f"{urlsplit(issuer).scheme}://"

    def url(name: str) -> str:
        found = document.get(name)
        if found is None:
            return ""
        if not isinstance(found, str) or not found.startswith(("https://", scheme)) or len(found) > 2048:
            raise BadDocument(f"{name} in its metadata is not a URL that starts with {scheme}")
        return found

    keys = url("jwks_uri")
    if not keys:
        raise BadDocument("its metadata has no jwks_uri")
    return Metadata(
        keys,
        url("authorization_endpoint"),
        url("token_endpoint"),
        url("end_session_endpoint"),
        document.get("authorization_response_iss_parameter_supported") is True,
    )


def read_keys(document: Mapping[str, Any]) -> dict[str | None, list[Key]]:
    """The keys for signatures, by id. Keys that cannot be used are passed over. Raises BadDocument if none is left."""
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
        raise BadDocument("its key set is no list of keys, or too long a one")
    found: dict[str | None, list[Key]] = {}
    for entry in listed:
        key = _read_key(entry)
        if key is not None:
            kid = entry.get("kid")
            found.setdefault(kid if isinstance(kid, str) else None, []).append(key)
    if not found:
        raise BadDocument("its key set has no key for signatures that can be used")
    return found


def _read_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kind = _KINDS.get(str(entry.get("kty")))
    if kind is None or "verify" not in (entry.get("key_ops") or ["verify"]):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # of short keys, which are passed over below
            key = kind.import_key(entry)
            public = key.public_key
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return None if isinstance(key, jwk.RSAKey) and public.key_size < _MIN_RSA_BITS else key  # type: ignore[union-attr]
