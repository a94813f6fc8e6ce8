"""Bearer keys: which key somebody shows, found in the same time whatever their number."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cubicle.core import api_keys
from cubicle.core.api_keys import ApiKey, BadKeys, KeyFile, KeyLimits, check_key, digest_of
from cubicle.core.chat import DEFAULT_TENANT
from cubicle.core.identity import Role

_BEARER = re.compile(r"bearer[ \t]+(\S+)", re.IGNORECASE)
NO_KEY_NEEDED = ApiKey("", DEFAULT_TENANT, Role.OPERATOR)
"""Who uses a service without a key is its operator."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Keys by what stands for each: a digest by a secret of this process, so nobody chooses or times its place."""

    salt: bytes
    secret: bytes
    by_digest: dict[bytes, tuple[bytes, ApiKey]]
    by_id: dict[str, ApiKey]
    of_tenant: dict[str, list[ApiKey]]
    generations: dict[str, str]
    has_limits: bool

    def find(self, key: str) -> ApiKey | None:
        digest = digest_of(self.salt, key)
        known, found = self.by_digest.get(self._place(digest), (b"", None))
        return found if hmac.compare_digest(digest, known) else None

    def _place(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self.secret, digest_size=16).digest()

    def add(self, digest: bytes, key: ApiKey) -> None:
        self.by_digest[self._place(digest)] = (digest, key)
        self.by_id[key.id] = key
        self.of_tenant.setdefault(key.tenant, []).append(key)


class KeyRing:
    """Every key of the service. One that never had a key asks for none."""

    def __init__(
        self,
        tenants: Mapping[str, str],
        file: KeyFile | None = None,
        *,
        pepper: bytes = b"",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tenants`: keys as they are. `pepper` makes ids for them that tell nothing of the key."""
        self._clock = clock
        self.locked = bool(tenants) or file is not None
        self.external: Callable[[str], bool] = lambda tenant: False
        """Whether people and programs can come as this tenant by another sign-in: then it needs no key of its own."""
        self.version = 0
        """Changes with the keys."""
        self.shows_keys = bool(file and file.plain)
        self._table = _made(tenants, file or KeyFile.empty(), pepper)

    @classmethod
    def parse(cls, single_key: str = "", file_text: str = "", *, pepper: bytes = b"") -> KeyRing:
        """From MCP_API_KEY, and from the text of API_KEYS_FILE. Raises BadKeys."""
        file = api_keys.parse(file_text) if file_text.strip() else None
        tenants = dict(file.plain) if file else {}
        if single_key:
            check_key("MCP_API_KEY", single_key)
            digest = digest_of(file.salt, single_key).hex() if file else ""
            if single_key in tenants or any(key.digest == digest for key in (file.keys if file else ())):
                raise BadKeys("MCP_API_KEY is also in API_KEYS_FILE, for a tenant: give each tenant its own key.")
            tenants[single_key] = DEFAULT_TENANT
        return cls(tenants, file, pepper=pepper)

    def __bool__(self) -> bool:
        """Whether a key is asked for."""
        return self.locked

    def __len__(self) -> int:
        return len(self._table.by_id)

    def replace(self, other: KeyRing) -> None:
        """Take the keys of another in place of these. What asked for a key goes on to."""
        self._table = other._table
        self.locked = self.locked or other.locked
        self.version += 1

    def changes(self, other: KeyRing) -> list[tuple[str, ApiKey]]:
        """What taking the keys of another would change: added, changed, revoked or removed, and which."""
        mine, others = self._table.by_id, other._table.by_id
        found = [("removed", key) for id, key in mine.items() if id not in others]
        for id, key in others.items():
            before = mine.get(id)
            if before is None:
                found.append(("added", key))
            elif before.revoked is None and key.revoked is not None:
                found.append(("revoked", key))
            elif before != key:
                found.append(("changed", key))
        return found

    @property
    def tenants(self) -> Collection[str]:
        """Every tenant that has, or had, a key."""
        return self._table.of_tenant.keys()

    def tenant(self, authorization: str | None) -> str | None:
        """The tenant that this Authorization header opens; None when it opens nothing."""
        found = self.shown(authorization)
        return None if found is None else found.tenant

    def shown(self, authorization: str | None) -> ApiKey | None:
        """The key in an Authorization header, if it works."""
        if not self.locked:
            return NO_KEY_NEEDED
        key = bearer_key(authorization)
        return None if key is None else self.opens(key)

    def opens(self, key: str) -> ApiKey | None:
        """The key that this text is, if it works now."""
        found = self._table.find(key)
        return found if found is not None and found.works_at(self._clock()) else None

    def of_id(self, id: str) -> ApiKey | None:
        """The key of this id, if it works now."""
        found = self._table.by_id.get(id)
        return found if found is not None and found.works_at(self._clock()) else None

    def limits(self, id: str) -> KeyLimits:
        """What the key of this id may use at most."""
        found = self._table.by_id.get(id)
        return found.limits if found is not None else KeyLimits()

    @property
    def has_limits(self) -> bool:
        """Whether any key has limits of its own."""
        return self._table.has_limits

    def has_tenant(self, tenant: str) -> bool:
        """Whether anybody can still come as this tenant."""
        if not self.locked or self.external(tenant):
            return True
        now = self._clock()
        return any(key.works_at(now) for key in self._table.of_tenant.get(tenant, ()))

    def generation(self, tenant: str) -> str:
        """What changes when a key of the tenant is revoked, and when one that is kept as it is changes."""
        return self._table.generations.get(tenant, "")


def _made(tenants: Mapping[str, str], file: KeyFile, pepper: bytes) -> _Table:
    has_limits = any(key.limits != KeyLimits() for key in file.keys)
    table = _Table(file.salt, secrets.token_bytes(32), {}, {}, {}, {}, has_limits)
    for key in file.keys:
        table.add(bytes.fromhex(key.digest), key)
    plain: dict[str, list[str]] = {}
    for text, tenant in tenants.items():
        role = Role.OPERATOR if tenant == DEFAULT_TENANT else Role.USER
        id = hmac.digest(pepper or b"-", f"cubicle key id\0{text}".encode(), "sha256").hex()[:16]
        table.add(digest_of(file.salt, text), ApiKey(id, tenant, role))
        plain.setdefault(tenant, []).append(id)
    for tenant in table.of_tenant:
        ended = sorted(key.id for key in table.of_tenant[tenant] if key.revoked is not None)
        table.generations[tenant] = "\0".join([*sorted(plain.get(tenant, [])), "", *ended])
    return table


def bearer_key(authorization: str | None) -> str | None:
    """The key in an Authorization header, if it holds one."""
    match = _BEARER.fullmatch(authorization.strip()) if authorization else None
    return match.group(1) if match else None
