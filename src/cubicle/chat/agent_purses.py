"""What the coding agents of each chat have spent, and whether they may spend more."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from cubicle import durable, record
from cubicle.record import BadRecord, Fields
from cubicle.rules.chats import Chat
from cubicle.rules.spending import Usage, price
from cubicle.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one chat, for as long as it exists; 0 is no limit."""

    dollars: float = 0
    requests: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.sub_agent_budget_usd, settings.sub_agent_max_requests, settings.sub_agent_max_tokens)


@dataclass(frozen=True, slots=True)
class Spent:
    dollars: float = 0
    requests: int = 0
    tokens: int = 0


class OutOfBudget(Exception):
    """The chat has spent what it may; the message says of what."""


class Purses:
    """One small file per chat, so that a restart forgives nothing."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._spent: dict[str, Spent] = {}
        self._writing = asyncio.Lock()

    def open(self) -> None:
        record.make_folder(self._folder)

    async def spent(self, chat: Chat) -> Spent:
        if chat.digest not in self._spent:
            found = await asyncio.to_thread(self._read, chat.digest)
            self._spent.setdefault(chat.digest, found)
        return self._spent[chat.digest]

    async def begin(self, chat: Chat) -> None:
        """One more request; OutOfBudget when the chat has used up what it may."""
        spent, limits = await self.spent(chat), self._limits
        if limits.dollars and spent.dollars >= limits.dollars:
            raise OutOfBudget(
                f"The budget of this chat is spent: {spent.dollars:.2f} of {limits.dollars:.2f} USD "
                f"(SUB_AGENT_BUDGET_USD)."
            )
        if limits.requests and spent.requests >= limits.requests:
            raise OutOfBudget(f"This chat has made all its {limits.requests} model calls (SUB_AGENT_MAX_REQUESTS).")
        if limits.tokens and spent.tokens >= limits.tokens:
            raise OutOfBudget(f"This chat has used all its {limits.tokens} tokens (SUB_AGENT_MAX_TOKENS).")
        self._spent[chat.digest] = replace(spent, requests=spent.requests + 1)

    def count(self, chat: Chat, model: str, usage: Usage) -> None:
        """Add what a request used, which `begin` has let through."""
        spent = self._spent.get(chat.digest)
        if spent is None:
            return  # the chat was removed meanwhile
        dollars = spent.dollars + price(model, usage)
        self._spent[chat.digest] = replace(spent, dollars=dollars, tokens=spent.tokens + usage.tokens)

    async def save(self, chat: Chat) -> None:
        async with self._writing:
            spent = self._spent.get(chat.digest)
            if spent is not None:
                await asyncio.to_thread(self._write, chat.digest, spent)

    async def forget(self, chat: Chat) -> None:
        """Remove all that is known of a chat, which was removed itself."""
        async with self._writing:
            self._spent.pop(chat.digest, None)
            await asyncio.to_thread(remove_record, self._folder, chat.digest)

    def _read(self, digest: str) -> Spent:
        path = self._folder / digest
        try:
            return _parse(record.read(path))
        except FileNotFoundError:
            return Spent()
        except (OSError, BadRecord) as error:
            log.error("the budget record %s cannot be read and is set aside: %s", digest, error)
            with suppress(OSError):
                durable.move(path, path.with_name(f"{digest}.unreadable-{int(time.time())}"))
            return Spent()

    def _write(self, digest: str, spent: Spent) -> None:
        record.write(self._folder / digest, asdict(spent))


def remove_record(folder: Path, digest: str) -> None:
    """Also one that was set aside."""
    with suppress(FileNotFoundError, IsADirectoryError):
        durable.remove(folder / digest)
    for path in folder.glob(f"{digest}.unreadable-*"):
        with suppress(OSError):
            durable.remove(path)


def _parse(fields: Fields) -> Spent:
    spent = Spent(fields.number("dollars"), fields.whole("requests"), fields.whole("tokens"))
    if spent.dollars < 0:
        raise BadRecord("a number in it cannot be")
    return spent
