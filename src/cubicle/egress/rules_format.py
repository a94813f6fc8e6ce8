"""What a rules file may say, as types. Its import takes a tenth of a second, which a service without a file saves."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cubicle.core.network import NetworkMode
from cubicle.egress.blocked_networks import Network
from cubicle.egress.policy import Action, BadRule, BadRules, Rule, Scheme


def _ports(value: Any) -> Any:
    """443 or "8000-8100"."""
    if isinstance(value, int) and not isinstance(value, bool):
        low = high = value
    elif isinstance(value, str):
        first, _, last = value.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ValueError("a port is a number, or two of them with a dash")
        low, high = int(first), int(last or first)
    else:
        raise ValueError("a port is a number, or two of them with a dash")
    if not 0 < low <= high < 65536:
        raise ValueError("ports go from 1 to 65535")
    return range(low, high + 1)


def _network(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("an address range is a text such as 10.0.0.0/8")
    return ip_network(value)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True, hide_input_in_errors=True)


class SecretFile(Strict):
    file: Path
    prefix: str = ""


class FileRule(Strict):
    name: str = Field(min_length=1, max_length=80, pattern=r"^[ -~]+$")
    action: Action = Action.ALLOW
    hosts: tuple[str, ...] = ()
    addresses: tuple[Annotated[Network, BeforeValidator(_network)], ...] = ()
    ports: tuple[Annotated[range, BeforeValidator(_ports)], ...] = ()
    scheme: Scheme | None = None
    methods: frozenset[Annotated[str, Field(pattern=r"^[A-Z]+$")]] = frozenset()
    paths: tuple[str, ...] = ()
    inject: dict[str, str | SecretFile] = {}

    def rule(self, secrets_of_files: Mapping[Path, str]) -> Rule:
        secrets = tuple((header, _secret(value, secrets_of_files)) for header, value in self.inject.items())
        scheme = self.scheme or (Scheme.HTTPS if secrets else None)
        return Rule(
            *(self.name, self.action, self.hosts, self.addresses, self.ports, scheme),
            *(self.methods, self.paths, secrets),
        )


class Part(Strict):
    mode: NetworkMode | None = None
    contact: Annotated[str, Field(max_length=200, pattern=r"^[ -~]+$")] | None = None
    max_connections: Annotated[int, Field(ge=1, le=512)] | None = None
    max_mb_per_day: Annotated[int, Field(ge=0)] | None = None
    rules: tuple[FileRule, ...] = ()


class Tenant(Part):
    chats: dict[str, Part] = {}


class Book(Tenant):
    version: Literal[1] = 1
    tenants: dict[str, Tenant] = {}


def _secret(value: str | SecretFile, secrets: Mapping[Path, str]) -> str:
    if isinstance(value, str):
        return value
    return value.prefix + secrets[value.file]


def all_parts(book: Book) -> list[Part]:
    """Of the file, of its tenants and of the chats of both."""
    parts: list[Part] = [book, *book.chats.values()]
    for tenant in book.tenants.values():
        parts += [tenant, *tenant.chats.values()]
    return parts


def parse(content: bytes, suffix: str) -> Book:
    """Raises BadRules."""
    try:
        text = content.decode("utf-8")
        data = json.loads(text) if suffix.lower() == ".json" else tomllib.loads(text)
        return Book.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise BadRules(f"EGRESS_RULES_FILE: {place}: {first['msg'].removeprefix('Value error, ')}") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if suffix.lower() == ".json" else "TOML"
        raise BadRules(f"EGRESS_RULES_FILE: it is not {kind}: {error}") from None


def built(rule: FileRule, secrets: Mapping[Path, str]) -> Rule:
    """Raises BadRules."""
    try:
        return rule.rule(secrets)
    except BadRule as error:
        raise BadRules(f"EGRESS_RULES_FILE: rule {rule.name!r}: {error}") from None
