"""The rules file: read at the start, and again whenever it changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cubicle.core.chat import DEFAULT_TENANT, Chat
from cubicle.egress.policy import DEFAULT_CONTACT, Policy, Rule
from cubicle.egress.policy import BadRules as BadRules

if TYPE_CHECKING:
    from cubicle.egress.rules_format import Book, Part

log = logging.getLogger(__name__)

_MAX_SIZE = 1024 * 1024

Additions = Callable[[Chat], Awaitable[tuple[Rule, ...]]]
"""Rules of a chat that set headers and open nothing."""


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
        self._book: Book | None = None
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
        parts = [] if self._book is None else _parts_for(chat, self._book)
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
        from cubicle.egress.rules_format import all_parts

        assert self._path is not None
        self._watched = self._watched or (self._path,)
        source = _load(self._path)
        self._use(source)
        assert self._book is not None
        if any(rule.inject for part in all_parts(self._book) for rule in part.rules):
            _warn_of_readers(self._watched)

    def _use(self, source: RulesSource) -> None:
        """Take these rules; BadRules, and nothing is changed, if they cannot be used."""
        from cubicle.egress.rules_format import all_parts, built, parse

        assert self._path is not None
        book = parse(source.content, self._path.suffix)
        rules = {id(part): tuple(built(rule, source.secrets) for rule in part.rules) for part in all_parts(book)}
        self._book, self._rules, self._stamp, self.source = book, rules, source.stamp, source
        self._watched = _watched(self._path, source.secrets)


def _parts_for(chat: Chat, book: Book) -> list[Part]:
    tenant = book.tenants.get(chat.tenant)
    own = book.chats if chat.tenant == DEFAULT_TENANT else {}
    chats = {**own, **(tenant.chats if tenant else {})}
    return [part for part in (chats.get(chat.id), tenant, book) if part is not None]


def _load(path: Path) -> RulesSource:
    from cubicle.egress.rules_format import all_parts, parse

    stamp = _stamp((path,))
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise BadRules(f"EGRESS_RULES_FILE: {error.strerror}") from None
    if len(content) > _MAX_SIZE:
        raise BadRules("EGRESS_RULES_FILE: it is larger than 1 MiB")
    secrets: dict[Path, str] = {}
    for rule in (rule for part in all_parts(parse(content, path.suffix)) for rule in part.rules):
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


def _warn_of_readers(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.stat(path).st_mode & 0o077:
            log.warning("%s holds secrets and others can read it: chmod 600", path.name)
