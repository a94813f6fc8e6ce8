"""Bearer keys: which tenant a key opens. Compared in constant time."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from typing import Any

from cubicle.core.chat import DEFAULT_TENANT

_BEARER = re.compile(r"bearer[ \t]+(\S+)", re.IGNORECASE)
MIN_KEY = 8
RESERVED = frozenset({DEFAULT_TENANT, "operator", "cubicle"})
"""Names that no tenant may have, in any letter case: who shows MCP_API_KEY is the tenant `main`, the operator."""
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class BadKeys(ValueError):
    """The keys cannot be used; the message says why and never shows a key."""


class KeyRing:
    """Every key of the service and the tenant behind each. An empty ring asks for no key."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = {key.encode(): tenant for key, tenant in tenants.items()}

    @classmethod
    def parse(cls, single_key: str = "", file_text: str = "") -> KeyRing:
        """From MCP_API_KEY, and from the text of API_KEYS_FILE: one JSON object of key to tenant. Raises BadKeys."""
        tenants = _read(file_text) if file_text.strip() else {}
        if single_key:
            _check_key("MCP_API_KEY", single_key)
            if single_key in tenants:
                raise BadKeys("MCP_API_KEY is also in API_KEYS_FILE, for a tenant: give each tenant its own key.")
            tenants[single_key] = DEFAULT_TENANT
        return cls(tenants)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant(self, authorization: str | None) -> str | None:
        """The tenant that this Authorization header opens; None when it opens nothing."""
        if not self._tenants:
            return DEFAULT_TENANT
        key = bearer_key(authorization)
        return None if key is None else self.opens(key)

    def keys_of(self, tenant: str) -> list[str]:
        return sorted(key.decode() for key, owner in self._tenants.items() if owner == tenant)

    def opens(self, key: str) -> str | None:
        """The tenant of a key. Looks at every key, whichever is the right one."""
        sent, found = key.encode("utf-8", "surrogateescape"), None
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(sent, known):
                found = tenant
        return found


def bearer_key(authorization: str | None) -> str | None:
    """The key in an Authorization header, if it holds one."""
    match = _BEARER.fullmatch(authorization.strip()) if authorization else None
    return match.group(1) if match else None


def is_tenant(name: str) -> bool:
    """Whether a tenant can have this name, the operator's own included."""
    return _TENANT.fullmatch(name) is not None


def _check_key(where: str, key: str) -> None:
    """A key must fit into a header, and be too long to be guessed."""
    if len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise BadKeys(
            f"{where}: a key is at least {MIN_KEY} printable ASCII characters without blanks. "
            f"Make one with `openssl rand -hex 32`."
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tenants = dict(pairs)
    if len(tenants) < len(pairs):
        raise BadKeys("API_KEYS_FILE names a key twice: a key opens one tenant.")
    return tenants


def _read(text: str) -> dict[str, str]:
    try:
        tenants = json.loads(text, object_pairs_hook=_once)
    except BadKeys:
        raise
    except (ValueError, RecursionError):
        raise BadKeys("API_KEYS_FILE does not hold JSON: write one object of key to tenant.") from None
    if not isinstance(tenants, dict):
        raise BadKeys("API_KEYS_FILE must hold one JSON object of key to tenant.")
    for key, tenant in tenants.items():
        _check_key("API_KEYS_FILE", key)
        if isinstance(tenant, str) and tenant.lower() in RESERVED:
            raise BadKeys(
                f"API_KEYS_FILE: no tenant may be named {tenant!r}, which is the operator's. "
                f"The operator's key is MCP_API_KEY; give the tenant another name."
            )
        if not isinstance(tenant, str) or not is_tenant(tenant):
            raise BadKeys(
                "API_KEYS_FILE: a tenant is 1 to 64 characters of A-Z a-z 0-9 . _ -, and starts with a letter or digit."
            )
    return dict(tenants)
