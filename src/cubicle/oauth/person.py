"""The person that the claims of a verified token name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cubicle.core.api_keys import RESERVED, is_tenant
from cubicle.core.caller import plain
from cubicle.core.identity import Role

_PLAIN_NAME = re.compile(r"(?!sha256-)[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,63}")
_MAX_SUBJECT = 255
_MAX_VALUES = 200


class BadClaims(ValueError):
    """The claims name nobody whom the service could let in; the message is for the client."""


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """Which claims say what, by the settings."""

    tenant: str
    """Of everybody, where no claim says it."""
    tenant_claim: str = ""
    role_claim: str = ""
    operator_roles: frozenset[str] = frozenset()
    email_claim: str = "email"
    scope_claim: str = "scope"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whom an issuer knows."""

    issuer: str
    subject: str
    tenant: str
    name: str
    """What stands for the person in chat ids: no other person of the service has it."""
    role: Role = Role.USER
    email: str | None = None
    scopes: frozenset[str] = frozenset()
    expires: int = 0
    """When the token ends."""


def person_of(claims: Mapping[str, Any], rules: ClaimRules, issuers: Sequence[str]) -> Person:
    """Of claims whose issuer was verified to be one of these. Raises BadClaims."""
    issuer, subject = claims["iss"], claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT or not subject.isprintable():
        raise BadClaims("The token has no subject (sub) that could be used.")
    roles = _texts(_claim(claims, rules.role_claim)) if rules.role_claim else frozenset()
    return Person(
        issuer,
        subject,
        _tenant(claims, rules),
        chat_name(subject, "" if issuer == issuers[0] else issuer),
        Role.OPERATOR if roles & rules.operator_roles else Role.USER,
        _email(claims, rules),
        _texts(_claim(claims, rules.scope_claim)) or _texts(claims.get("scp")),
        int(claims["exp"]),
    )


def chat_name(subject: str, issuer: str = "") -> str:
    """A subject as a part of a chat id; hashed when it has characters that a chat id cannot have, or could be taken
    for a hash. Subjects of the first issuer have no `issuer`; those of others are hashed with theirs, because two
    issuers can have the same subject for two people."""
    if not issuer and _PLAIN_NAME.fullmatch(subject):
        return subject
    return "sha256-" + hashlib.sha256(f"{issuer}\0{subject}".encode()).hexdigest()[:40]


def _tenant(claims: Mapping[str, Any], rules: ClaimRules) -> str:
    if not rules.tenant_claim:
        return rules.tenant
    tenant = _claim(claims, rules.tenant_claim)
    if not isinstance(tenant, str) or not is_tenant(tenant) or tenant.lower() in RESERVED:
        raise BadClaims("The token names no tenant that the service could use.")
    return tenant


def _email(claims: Mapping[str, Any], rules: ClaimRules) -> str | None:
    """An address that the issuer says it did not verify is anybody's word."""
    found = _claim(claims, rules.email_claim)
    if not isinstance(found, str) or claims.get("email_verified", True) is not True:
        return None
    return plain(found)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of this name, or at this path of names with dots between them (`realm_access.roles`)."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _texts(value: Any) -> frozenset[str]:
    """The words of a text, or the texts of a list."""
    parts = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return frozenset(part for part in parts[:_MAX_VALUES] if isinstance(part, str))
