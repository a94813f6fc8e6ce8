"""Access tokens (JWT, RFC 9068): verified against the keys of their issuer, and remembered until they end."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jws import JWSRegistry

from cubicle.oauth.issuer import Issuer
from cubicle.oauth.person import BadClaims, ClaimRules, Person, person_of
from cubicle.oauth_settings import ALGORITHMS

MAX_TOKEN = 16 * 1024
_MAX_KNOWN = 10_000
_TYPES = (None, "jwt", "at+jwt", "application/at+jwt")
"""Of access tokens; other kinds of tokens that an issuer signs (`logout+jwt`, `dpop+jwt`) say what they are."""


class BadToken(Exception):
    """The token opens nothing; the message is for the client and says no more than it needs to mend it."""


class MissingScope(Exception):
    """The token is good, but lacks a scope that the service asks for."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What the service takes, by the settings."""

    audiences: tuple[str, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    scopes: frozenset[str] = frozenset()
    skew: int = 60


@dataclass(frozen=True, slots=True)
class _Known:
    person: Person
    generation: int
    begins: float
    ends: float


class AccessTokens:
    """The tokens of these issuers. Between `async with` their keys are kept fresh."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        rules: TokenRules,
        claims: ClaimRules,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.issuers = {issuer.url: issuer for issuer in issuers}
        self.rules = rules
        self.claims = claims
        self._clock = clock
        self._registry = JWSRegistry(algorithms=list(rules.algorithms), strict_check_header=False)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._secret = secrets.token_bytes(32)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for issuer in self.issuers.values():
            await self._open.enter_async_context(issuer)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()

    def known(self, token: str) -> Person | None:
        """Whose token it is, if it was verified before and still holds: no signature is checked again."""
        digest = self._digest(token)
        kept = self._known.get(digest)
        if kept is None:
            return None
        now = self._clock()
        if self.issuers[kept.person.issuer].generation != kept.generation or not kept.begins <= now < kept.ends:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return kept.person

    async def verify(self, token: str) -> Person:
        """Whose token it is. Raises BadToken, MissingScope, IssuerUnavailable."""
        person = self.known(token)
        if person is None:
            issuer, claims = await self.verified_claims(token, self.rules.audiences)
            try:
                person = person_of(claims, self.claims, list(self.issuers))
            except BadClaims as error:
                raise BadToken(str(error)) from None
            self._remember(token, person, issuer.generation, claims)
        if not self.rules.scopes <= person.scopes:
            raise MissingScope("The token lacks a scope: " + " ".join(sorted(self.rules.scopes - person.scopes)))
        return person

    async def verified_claims(
        self, token: str, audiences: Sequence[str], types: Sequence[str | None] = _TYPES
    ) -> tuple[Issuer, dict[str, Any]]:
        """The claims of a token for one of these audiences. Raises BadToken, IssuerUnavailable."""
        header, claimed = _unverified(token)
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ")
        if not isinstance(algorithm, str) or algorithm not in self.rules.algorithms:
            raise BadToken("The token is signed with an algorithm that is not allowed.")
        if (kind.lower() if isinstance(kind, str) else kind) not in types or not isinstance(kid, str | None):
            raise BadToken("The token is of another kind than those that are taken here.")
        issuer = self.issuers.get(claimed) if isinstance(claimed, str) else None
        if issuer is None:
            raise BadToken("The token is of an issuer that is not trusted here.")
        key = await issuer.key(kid, algorithm)
        if key is None:
            raise BadToken("The token is signed with a key that its issuer does not have.")
        asked = jwt.JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=self.rules.skew,
            iss={"essential": True, "value": issuer.url},
            aud={"essential": True, "values": list(audiences)},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            claims = jwt.decode(token, key, registry=self._registry).claims
            asked.validate(claims)
        except ExpiredTokenError:
            raise BadToken("The token has expired.") from None
        except JoseError as error:
            reason = f"its claim {error.claim} does not fit" if hasattr(error, "claim") else "its signature is wrong"
            raise BadToken(f"The token is not valid here: {reason}.") from None
        except (ValueError, TypeError, RecursionError):
            raise BadToken("The token cannot be read.") from None
        return issuer, claims

    def _remember(self, token: str, person: Person, generation: int, claims: Mapping[str, Any]) -> None:
        skew = self.rules.skew
        self._known[self._digest(token)] = _Known(person, generation, claims.get("nbf", 0) - skew, claims["exp"] + skew)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def _digest(self, token: str) -> bytes:
        """No token is kept as it is."""
        return hashlib.blake2b(token.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=24).digest()


def looks_like_token(bearer: str | None) -> bool:
    """Whether a bearer credential is a JWT, and no API key."""
    return bearer is not None and bearer.startswith("eyJ") and bearer.count(".") == 2


def _unverified(token: str) -> tuple[dict[str, Any], Any]:
    """The header and the issuer that the token claims, to find the key by; nothing else is taken from it."""
    if len(token) > MAX_TOKEN or not token.isascii():
        raise BadToken("The token is too long.")
    try:
        parts = jws.extract_compact(token.encode())
        header, claims = parts.headers(), json.loads(parts.payload)
    except (JoseError, ValueError, TypeError, RecursionError, AssertionError, AttributeError):
        raise BadToken("The token cannot be read.") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise BadToken("The token cannot be read.")
    return header, claims.get("iss")
