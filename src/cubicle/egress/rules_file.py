"""The rules file: read at the start, and again whenever it changes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cubicle.core.chat import DEFAULT_TENANT, Chat
from cubicle.core.network import NetworkMode
from cubicle.egress.blocked_networks import Network
from cubicle.egress.policy import DEFAULT_CONTACT, Action, BadRule, Policy, Rule, Scheme
from cubicle.settings import BadSettings

log = logging.getLogger(__name__)

_MAX_SIZE = 1024 * 1024

Additions = Callable[[Chat], Awaitable[tuple[Rule, ...]]]
"""Rules of a chat that set headers and open nothing."""


class BadRules(BadSettings):
    """The rules file cannot be used; the message says where it is wrong."""


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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True, hide_input_in_errors=True)


class _SecretFile(_Strict):
    file: Path
    prefix: str = ""


class _Rule(_Strict):
    name: str = Field(min_length=1, max_length=80, pattern=r"^[ -~]+$")
    action: Action = Action.ALLOW
    hosts: tuple[str, ...] = ()
    addresses: tuple[Annotated[Network, BeforeValidator(_network)], ...] = ()
    ports: tuple[Annotated[range, BeforeValidator(_ports)], ...] = ()
    scheme: Scheme | None = None
    methods: frozenset[Annotated[str, Field(pattern=r"^[A-Z]+$")]] = frozenset()
    paths: tuple[str, ...] = ()
    inject: dict[str, str | _SecretFile] = {}

    def rule(self, secrets_of_files: Mapping[Path, str]) -> Rule:
        secrets = tuple((header, _secret(value, secrets_of_files)) for header, value in self.inject.items())
        scheme = self.scheme or (Scheme.HTTPS if secrets else None)
        return Rule(
            *(self.name, self.action, self.hosts, self.addresses, self.ports, scheme),
            *(self.methods, self.paths, secrets),
        )


class _Part(_Strict):
    mode: NetworkMode | None = None
    contact: Annotated[str, Field(max_length=200, pattern=r"^[ -~]+$")] | None = None
    max_connections: Annotated[int, Field(ge=1, le=512)] | None = None
    max_mb_per_day: Annotated[int, Field(ge=0)] | None = None
    rules: tuple[_Rule, ...] = ()


class _Tenant(_Part):
    chats: dict[str, _Part] = {}


class _Book(_Tenant):
    version: Literal[1] = 1
    tenants: dict[str, _Tenant] = {}


def _secret(value: str | _SecretFile, secrets: Mapping[Path, str]) -> str:
    if isinstance(value, str):
        return value
    return value.prefix + secrets[value.file]


@dataclass(frozen=True, slots=True)
class RulesSource:
    """A rules file as it was read: what it says, and the secrets of the files that it names."""

    content: bytes = field(repr=False)
    secrets: Mapping[Path, str] = field(repr=False)
    stamp: tuple[object, ...]
    """Of the file and those of the secrets, when they were read."""


class RulesFile:
    """Which policy holds for which chat."""

    def __init__(self, path: Path | None, default: Policy, additions: Additions | None = None) -> None:
        self._path = path
        self._additions = additions
        self._default = default
        self._book = _Book()
        self._rules: dict[int, tuple[Rule, ...]] = {}
        self._stamp: tuple[object, ...] = ()
        self._watched: tuple[Path, ...] = ()
        self._reading = asyncio.Lock()
        self.source: RulesSource | None = None
        """The last file that could be used."""
        self.on_read: Callable[[], None] = lambda: None
        """Called when the file changed and could be used."""

    async def open(self, source: RulesSource | None = None) -> None:
        """Read the rules for the first time; BadRules if they cannot be used.

        With a source, those hold until the file is found to be another one that can be used.
        """
        if source is not None:
            self._use(source)
        elif self._path is not None:
            await asyncio.to_thread(self._read)
            log.info("egress rules read", extra={"rules": sum(map(len, self._rules.values()))})

    @property
    def may_inject(self) -> bool:
        """Whether a rule that sets headers can ever come up."""
        return self._path is not None or self._additions is not None

    async def policy(self, chat: Chat) -> Policy:
        """What holds for this chat now: its own rules first, then those of its tenant, then those for all."""
        await self.refresh()
        tenant = self._book.tenants.get(chat.tenant)
        own = self._book.chats if chat.tenant == DEFAULT_TENANT else {}
        chats = {**own, **(tenant.chats if tenant else {})}
        parts = [part for part in (chats.get(chat.id), tenant, self._book) if part is not None]
        return Policy(
            mode=_first((p.mode for p in parts), self._default.mode),
            rules=(*(rule for part in parts for rule in self._rules.get(id(part), ())), *self._default.rules),
            contact=_first((p.contact for p in parts), self._default.contact or DEFAULT_CONTACT),
            most_connections=_first((p.max_connections for p in parts), self._default.most_connections),
            most_bytes=_first(
                (None if p.max_mb_per_day is None else p.max_mb_per_day << 20 for p in parts),
                self._default.most_bytes,
            ),
            additions=await self._additions(chat) if self._additions else (),
        )

    async def refresh(self) -> None:
        """Read the file again if it changed. One that cannot be used changes nothing."""
        if self._path is not None and _stamp(self._watched) != self._stamp:
            async with self._reading:
                if (found := _stamp(self._watched)) != self._stamp:
                    await self._read_again(found)

    async def _read_again(self, found: tuple[object, ...]) -> None:
        try:
            await asyncio.to_thread(self._read)
        except BadRules as error:
            self._stamp = found
            log.error("The changed egress rules are not used; those from before hold. %s", error)
        else:
            log.info("egress rules read again", extra={"rules": sum(map(len, self._rules.values()))})
            self.on_read()

    def _read(self) -> None:
        assert self._path is not None
        self._watched = self._watched or (self._path,)
        source = _load(self._path)
        self._use(source)
        if any(rule.inject for part in _parts(self._book) for rule in part.rules):
            _warn_of_readers(self._watched)

    def _use(self, source: RulesSource) -> None:
        """Take these rules; BadRules, and nothing is changed, if they cannot be used."""
        assert self._path is not None
        book = _parse(source.content, self._path.suffix)
        rules = {id(part): tuple(_built(rule, source.secrets) for rule in part.rules) for part in _parts(book)}
        self._book, self._rules, self._stamp, self.source = book, rules, source.stamp, source
        self._watched = _watched(self._path, source.secrets)


def _load(path: Path) -> RulesSource:
    stamp = _stamp((path,))
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise BadRules(f"EGRESS_RULES_FILE: {error.strerror}") from None
    if len(content) > _MAX_SIZE:
        raise BadRules("EGRESS_RULES_FILE: it is larger than 1 MiB")
    secrets: dict[Path, str] = {}
    for rule in (rule for part in _parts(_parse(content, path.suffix)) for rule in part.rules):
        for value in rule.inject.values():
            if not isinstance(value, str):
                try:
                    secrets[value.file] = (path.parent / value.file).read_text(encoding="utf-8").strip()
                except (OSError, UnicodeDecodeError):
                    message = f"EGRESS_RULES_FILE: rule {rule.name!r}: the file of a secret cannot be read"
                    raise BadRules(message) from None
    return RulesSource(content, secrets, stamp + _stamp(_watched(path, secrets)[1:]))


def _watched(path: Path, secrets: Iterable[Path]) -> tuple[Path, ...]:
    return path, *sorted({path.parent / file for file in secrets})


def _parts(book: _Book) -> list[_Part]:
    parts: list[_Part] = [book, *book.chats.values()]
    for tenant in book.tenants.values():
        parts += [tenant, *tenant.chats.values()]
    return parts


def _first(values: Iterable[Any], otherwise: Any) -> Any:
    return next((value for value in values if value is not None), otherwise)


def _stamp(paths: Iterable[Path]) -> tuple[object, ...]:
    found: list[object] = []
    for path in paths:
        try:
            stat = os.stat(path)
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def _parse(content: bytes, suffix: str) -> _Book:
    try:
        text = content.decode("utf-8")
        data = json.loads(text) if suffix.lower() == ".json" else tomllib.loads(text)
        return _Book.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise BadRules(f"EGRESS_RULES_FILE: {place}: {first['msg'].removeprefix('Value error, ')}") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if suffix.lower() == ".json" else "TOML"
        raise BadRules(f"EGRESS_RULES_FILE: it is not {kind}: {error}") from None


def _built(rule: _Rule, secrets: Mapping[Path, str]) -> Rule:
    try:
        return rule.rule(secrets)
    except BadRule as error:
        raise BadRules(f"EGRESS_RULES_FILE: rule {rule.name!r}: {error}") from None


def _warn_of_readers(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.stat(path).st_mode & 0o077:
            log.warning("%s holds secrets and others can read it: chmod 600", path.name)
