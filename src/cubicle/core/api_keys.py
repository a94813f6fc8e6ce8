"""API keys as a file holds them: a digest in place of each key, with its tenant, role, expiry and limits.

The file of the versions before, one JSON object of key to tenant, is read too. What is wrong with either is said by
BadKeys, which never shows a key.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from cubicle.core.chat import DEFAULT_TENANT
from cubicle.core.identity import Role

MIN_KEY = 8
MAX_LABEL = 200
RESERVED = frozenset({DEFAULT_TENANT, "operator", "cubicle"})
"""Names that no tenant may have, in any letter case: an operator's key belongs to the tenant `main`."""
PREFIX = "cubicle_"
_VERSION = 1
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID = re.compile(r"[a-z0-9]{4,32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_SECONDS = 2**40


class BadKeys(ValueError):
    """The keys cannot be used; the message says why and never shows a key."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one key may use at most; 0: what the service allows anybody."""

    calls_per_minute: int = 0
    calls_at_once: int = 0
    sandboxes: int = 0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, without the key."""

    id: str
    tenant: str
    role: Role = Role.USER
    label: str = ""
    created: int = 0
    expires: int | None = None
    """Seconds since 1970; None: never."""
    revoked: int | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)
    digest: str = ""
    """Of the key, by the salt of the file. Empty for a key that is kept as it is."""

    def works_at(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    def state(self, now: float) -> str:
        if self.revoked is not None:
            return "revoked"
        return "works" if self.works_at(now) else "expired"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What API_KEYS_FILE holds."""

    salt: bytes
    keys: tuple[ApiKey, ...] = ()
    plain: Mapping[str, str] = field(default_factory=dict)
    """Keys that the file shows as they are, by tenant: only a file of the versions before has them."""

    @classmethod
    def empty(cls) -> KeyFile:
        return cls(secrets.token_bytes(16))

    def text(self) -> str:
        rows = [{name: value for name, value in asdict(key).items() if value is not None} for key in self.keys]
        return json.dumps({"version": _VERSION, "salt": self.salt.hex(), "keys": rows}, indent=1) + "\n"

    def find(self, id: str) -> ApiKey:
        """Raises BadKeys."""
        for key in self.keys:
            if key.id == id:
                return key
        raise BadKeys(f"No key has the id {id!r}: `cubicle keys list` shows those that there are.")

    def with_key(self, key: str, record: ApiKey) -> KeyFile:
        """One more, of which only the digest is kept. Raises BadKeys."""
        digest = digest_of(self.salt, key).hex()
        if any(known.id == record.id or known.digest == digest for known in self.keys):
            raise BadKeys("This key, or one of this id, is there already.")
        made = replace(record, digest=digest)
        _check(made)
        return replace(self, keys=(*self.keys, made))

    def with_changed(self, id: str, **changes: Any) -> KeyFile:
        changed = replace(self.find(id), **changes)
        return replace(self, keys=tuple(changed if key.id == id else key for key in self.keys))

    def hashed(self, now: float) -> KeyFile:
        """The same without a key in it that can be read."""
        made = replace(self, plain={})
        for key, tenant in self.plain.items():
            made = made.with_key(key, ApiKey(new_id(), tenant, created=int(now)))
        return made


def new_id() -> str:
    return secrets.token_hex(4)


def new_key(id: str) -> str:
    """A key that nobody can guess. It begins with what secret scanners can look for, and with its id."""
    return f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"


def digest_of(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode("utf-8", "surrogateescape"), "sha256")


def is_tenant(name: str) -> bool:
    """Whether a tenant can have this name, the operator's own included."""
    return _TENANT.fullmatch(name) is not None


def check_key(where: str, key: str) -> None:
    """A key must fit into a header, and be too long to be guessed."""
    if len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise BadKeys(
            f"{where}: a key is at least {MIN_KEY} printable ASCII characters without blanks. "
            f"Make one with `openssl rand -hex 32`."
        )


def check_tenant(tenant: object, role: Role = Role.USER) -> None:
    """Whether a key of this role may have this tenant. Raises BadKeys."""
    if role is Role.OPERATOR and tenant == DEFAULT_TENANT:
        return
    if isinstance(tenant, str) and tenant.lower() in RESERVED:
        raise BadKeys(
            f"API_KEYS_FILE: no tenant may be named {tenant!r}, which is the operator's. "
            f"The operator's key is MCP_API_KEY, or one of the role operator; give the tenant another name."
        )
    if role is Role.OPERATOR:
        raise BadKeys(f"API_KEYS_FILE: a key of the role operator belongs to the tenant {DEFAULT_TENANT!r}.")
    if not isinstance(tenant, str) or not is_tenant(tenant):
        raise BadKeys(
            "API_KEYS_FILE: a tenant is 1 to 64 characters of A-Z a-z 0-9 . _ -, and starts with a letter or digit."
        )


def parse(text: str) -> KeyFile:
    """Either kind of file. Raises BadKeys."""
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except BadKeys:
        raise
    except (ValueError, RecursionError):
        raise BadKeys("API_KEYS_FILE does not hold JSON: make it with `cubicle keys add`.") from None
    if not isinstance(found, dict):
        raise BadKeys("API_KEYS_FILE must hold one JSON object: make it with `cubicle keys add`.")
    return _hashed(found) if "version" in found else replace(KeyFile.empty(), plain=_plain(found))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadKeys("API_KEYS_FILE names a key twice: a key opens one tenant.")
    return found


def _plain(found: dict[str, Any]) -> dict[str, str]:
    for key, tenant in found.items():
        check_key("API_KEYS_FILE", key)
        check_tenant(tenant)
    return found


def _hashed(found: dict[str, Any]) -> KeyFile:
    version, salt, rows = found["version"], found.get("salt"), found.get("keys")
    if version != _VERSION:
        raise BadKeys("API_KEYS_FILE was written by another version of the service, which this one does not know.")
    if not isinstance(salt, str) or not re.fullmatch(r"[0-9a-f]{32,128}", salt) or len(salt) % 2:
        raise BadKeys("API_KEYS_FILE: salt is not a text of at least 32 hexadecimal digits.")
    if not isinstance(rows, list):
        raise BadKeys("API_KEYS_FILE: keys is not a list.")
    keys = tuple(_key(row, number) for number, row in enumerate(rows, 1))
    for name in ("id", "digest"):
        if len({getattr(key, name) for key in keys}) < len(keys):
            raise BadKeys(f"API_KEYS_FILE: two keys have the same {name}.")
    return KeyFile(bytes.fromhex(salt), keys)


def _key(row: object, number: int) -> ApiKey:
    where = f"API_KEYS_FILE, key {number}"
    if not isinstance(row, dict):
        raise BadKeys(f"{where}: it is not an object.")
    try:
        role = Role(row.get("role", Role.USER))
    except ValueError:
        raise BadKeys(f"{where}: role is user or operator.") from None
    limits = row.get("limits", {})
    if not isinstance(limits, dict):
        raise BadKeys(f"{where}: limits is not an object.")
    counts = {each.name: _whole(limits, each.name, where) or 0 for each in fields(KeyLimits)}
    key = ApiKey(
        _text(row, "id", where),
        _text(row, "tenant", where),
        role,
        _text(row, "label", where, ""),
        _whole(row, "created", where) or 0,
        _whole(row, "expires", where),
        _whole(row, "revoked", where),
        KeyLimits(**counts),
        _text(row, "digest", where),
    )
    _check(key, where)
    return key


def _check(key: ApiKey, where: str = "The key") -> None:
    check_tenant(key.tenant, key.role)
    if not _ID.fullmatch(key.id):
        raise BadKeys(f"{where}: id is 4 to 32 characters of a-z and 0-9.")
    if not _DIGEST.fullmatch(key.digest):
        raise BadKeys(f"{where}: digest is not 64 hexadecimal digits.")
    if len(key.label) > MAX_LABEL or not key.label.isprintable():
        raise BadKeys(f"{where}: label is one printable line of at most {MAX_LABEL} characters.")


def _text(row: dict[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = row.get(name, default)
    if not isinstance(value, str):
        raise BadKeys(f"{where}: {name} is not a text.")
    return value


def _whole(row: dict[str, Any], name: str, where: str) -> int | None:
    value = row.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_SECONDS):
        raise BadKeys(f"{where}: {name} is not a whole number.")
    return value
