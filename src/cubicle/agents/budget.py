"""What the coding agents of each chat, user and tenant have spent, and whether they may spend more."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cubicle import durable, record
from cubicle.agents.pricing import TokenUsage, price
from cubicle.core.chat import Chat
from cubicle.record import BadRecord, Fields

if TYPE_CHECKING:
    from cubicle.settings import Settings

log = logging.getLogger(__name__)

_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Of one chat, user or tenant; 0 is no limit."""

    dollars: float = 0
    requests: int = 0
    tokens: int = 0
    days: float = 0
    """After which the counting begins anew; 0: never."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Those of a chat, for as long as it exists."""
        return cls(settings.sub_agent_budget_usd, settings.sub_agent_max_requests, settings.sub_agent_max_tokens)

    @classmethod
    def of_tenant(cls, settings: Settings) -> Self:
        return cls(
            settings.sub_agent_tenant_budget_usd,
            settings.sub_agent_tenant_max_requests,
            settings.sub_agent_tenant_max_tokens,
            settings.sub_agent_tenant_days,
        )

    @classmethod
    def of_user(cls, settings: Settings) -> Self:
        return cls(settings.sub_agent_user_budget_usd, days=settings.sub_agent_tenant_days)


@dataclass(frozen=True, slots=True)
class SpentBudget:
    dollars: float = 0
    requests: int = 0
    tokens: int = 0
    since: float = 0.0
    """The date at which the counting began, where it begins anew some day."""

    def plus(self, other: SpentBudget) -> SpentBudget:
        dollars, requests = self.dollars + other.dollars, self.requests + other.requests
        return SpentBudget(dollars, requests, self.tokens + other.tokens, self.since or other.since)


class OutOfBudget(Exception):
    """The chat or its tenant has spent what it may; the message says of what."""


class Spending:
    """What each of several has spent: one small file each, so that a restart forgives nothing."""

    def __init__(
        self, folder: Path, days: float = 0, clock: Callable[[], float] = time.time, others: Sequence[Path] = ()
    ) -> None:
        """`others`: where other processes of the service count."""
        self._folder = folder
        self._others = others
        self._days = days
        self._clock = clock
        self._spent: dict[str, SpentBudget] = {}
        self._on_disk: dict[str, SpentBudget] = {}
        self._writing = asyncio.Lock()

    def open(self) -> None:
        record.make_folder(self._folder)

    async def of(self, name: str) -> SpentBudget:
        if name not in self._spent:
            found = await asyncio.to_thread(self._read, name)
            self._spent.setdefault(name, found)
        spent, now = self._spent[name], self._clock()
        if self._days and (not spent.since or now - spent.since >= self._days * _DAY):
            self._spent[name] = SpentBudget(since=now) if spent.since else replace(spent, since=now)
        return self._spent[name]

    async def elsewhere(self, name: str) -> SpentBudget:
        """What other processes counted of it, as they last wrote it down."""
        if not self._others or not name:
            return SpentBudget()
        return await asyncio.to_thread(self._read_others, name)

    def _read_others(self, name: str) -> SpentBudget:
        total, now = SpentBudget(), self._clock()
        for folder in self._others:
            with suppress(OSError, BadRecord):  # it is set aside by whose it is
                spent = _parse(record.read(folder / name))
                if not self._days or now - spent.since < self._days * _DAY:
                    total = total.plus(spent)
        return total

    def add(self, name: str, *, dollars: float = 0, requests: int = 0, tokens: int = 0) -> None:
        """Count more of one that `of` has been asked about; of one that was forgotten meanwhile nothing."""
        spent = self._spent.get(name)
        if spent is not None:
            self._spent[name] = replace(
                spent,
                dollars=spent.dollars + dollars,
                requests=spent.requests + requests,
                tokens=spent.tokens + tokens,
            )

    async def save(self, name: str) -> None:
        async with self._writing:
            spent = self._spent.get(name)
            if spent is not None and spent != self._on_disk.get(name):  # another call may have written this one's, too
                await asyncio.to_thread(record.write, self._folder / name, asdict(spent))
                self._on_disk[name] = spent

    async def forget(self, name: str) -> None:
        async with self._writing:
            self._spent.pop(name, None)
            self._on_disk.pop(name, None)
            await asyncio.to_thread(remove_record, self._folder, name)

    def _read(self, name: str) -> SpentBudget:
        path = self._folder / name
        try:
            return _parse(record.read(path))
        except FileNotFoundError:
            return SpentBudget()
        except (OSError, BadRecord) as error:
            log.error("the budget record %s cannot be read and is set aside: %s", name, error)
            with suppress(OSError):
                durable.move(path, path.with_name(f"{name}.unreadable-{int(time.time())}"))
            return SpentBudget()


class BudgetStore:
    """The budgets of chats, of their users and of their tenants: a call of a model must fit into all of them."""

    def __init__(
        self,
        folder: Path,
        limits: BudgetLimits,
        tenants_folder: Path | None = None,
        tenant_limits: BudgetLimits | None = None,
        users_folder: Path | None = None,
        user_limits: BudgetLimits | None = None,
        others: tuple[Sequence[Path], Sequence[Path]] = ((), ()),
    ) -> None:
        """`others`: the folders of tenants and of users of other processes."""
        self._limits = limits
        self.tenant_limits = tenant_limits or BudgetLimits()
        self._chats = Spending(folder)
        self._tenants = Spending(tenants_folder or folder / "tenants", self.tenant_limits.days, others=others[0])
        self._user_limits = user_limits or BudgetLimits()
        self._users = Spending(users_folder or folder / "users", self._user_limits.days, others=others[1])
        self.user_of: Callable[[Chat], str] = lambda chat: ""
        """Who used the chat last; nothing when nobody was named."""

    def open(self) -> None:
        self._chats.open()
        self._tenants.open()
        if self._user_limits.dollars:
            self._users.open()

    async def spent(self, chat: Chat) -> SpentBudget:
        return await self._chats.of(chat.digest)

    async def spent_by(self, tenant: str) -> SpentBudget:
        return (await self._tenants.of(tenant)).plus(await self._tenants.elsewhere(tenant))

    async def begin(self, chat: Chat) -> None:
        """One more request; OutOfBudget when the chat, its user or its tenant has used up what it may."""
        user = self._user(chat)
        by_tenant, by_user = await self._tenants.elsewhere(chat.tenant), await self._users.elsewhere(user)
        await self._tenants.of(chat.tenant)
        await self.spent(chat)
        if user:
            await self._users.of(user)
        # Asked again: all are known now, so nothing is waited for between the look and the count.
        _require_chat(await self.spent(chat), self._limits)
        if user:
            _require_user((await self._users.of(user)).plus(by_user), self._user_limits)
        _require_tenant(chat.tenant, (await self._tenants.of(chat.tenant)).plus(by_tenant), self.tenant_limits)
        self._chats.add(chat.digest, requests=1)
        self._tenants.add(chat.tenant, requests=1)
        self._users.add(user, requests=1)

    def count(self, chat: Chat, model: str, usage: TokenUsage) -> None:
        """Add what a request used, which `begin` has let through."""
        dollars = price(model, usage)
        self._chats.add(chat.digest, dollars=dollars, tokens=usage.tokens)
        self._tenants.add(chat.tenant, dollars=dollars, tokens=usage.tokens)
        self._users.add(self._user(chat), dollars=dollars, tokens=usage.tokens)

    async def save(self, chat: Chat) -> None:
        await self._chats.save(chat.digest)
        await self._tenants.save(chat.tenant)
        await self._users.save(self._user(chat))

    def _user(self, chat: Chat) -> str:
        """The name of the record of the chat's user; nothing where users have no limit, or nobody was named."""
        user = self.user_of(chat) if self._user_limits.dollars else ""
        text = f"{chat.tenant}\0{user}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()[:32] if user else ""

    async def forget(self, chat: Chat) -> None:
        """Remove all that is known of a chat, which was removed itself. What it spent stays its tenant's."""
        await self._chats.forget(chat.digest)


def _require_chat(spent: SpentBudget, limits: BudgetLimits) -> None:
    if limits.dollars and spent.dollars >= limits.dollars:
        raise OutOfBudget(
            f"The budget of this chat is spent: {spent.dollars:.2f} of {limits.dollars:.2f} USD (SUB_AGENT_BUDGET_USD)."
        )
    if limits.requests and spent.requests >= limits.requests:
        raise OutOfBudget(f"This chat has made all its {limits.requests} model calls (SUB_AGENT_MAX_REQUESTS).")
    if limits.tokens and spent.tokens >= limits.tokens:
        raise OutOfBudget(f"This chat has used all its {limits.tokens} tokens (SUB_AGENT_MAX_TOKENS).")


def _require_user(spent: SpentBudget, limits: BudgetLimits) -> None:
    if limits.dollars and spent.dollars >= limits.dollars:
        raise OutOfBudget(
            f"The budget of all chats of this user is spent: {spent.dollars:.2f} of {limits.dollars:.2f} USD "
            f"(SUB_AGENT_USER_BUDGET_USD).{_renewed(spent, limits)}"
        )


def _renewed(spent: SpentBudget, limits: BudgetLimits) -> str:
    if not limits.days:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(min(spent.since + limits.days * _DAY, 32503680000.0)))
    return f" It begins anew on {day}."


def _require_tenant(tenant: str, spent: SpentBudget, limits: BudgetLimits) -> None:
    renewed = _renewed(spent, limits)
    if limits.dollars and spent.dollars >= limits.dollars:
        raise OutOfBudget(
            f"The budget of all chats of the tenant {tenant} is spent: {spent.dollars:.2f} of {limits.dollars:.2f} USD "
            f"(SUB_AGENT_TENANT_BUDGET_USD).{renewed}"
        )
    if limits.requests and spent.requests >= limits.requests:
        raise OutOfBudget(
            f"The chats of the tenant {tenant} have made all their {limits.requests} model calls "
            f"(SUB_AGENT_TENANT_MAX_REQUESTS).{renewed}"
        )
    if limits.tokens and spent.tokens >= limits.tokens:
        raise OutOfBudget(
            f"The chats of the tenant {tenant} have used all their {limits.tokens} tokens "
            f"(SUB_AGENT_TENANT_MAX_TOKENS).{renewed}"
        )


def remove_record(folder: Path, name: str) -> None:
    """Also one that was set aside."""
    with suppress(FileNotFoundError, IsADirectoryError):
        durable.remove(folder / name)
    for path in folder.glob(f"{name}.unreadable-*"):
        with suppress(OSError):
            durable.remove(path)


def _parse(fields: Fields) -> SpentBudget:
    since = fields.number("since") if "since" in fields.values else 0.0
    spent = SpentBudget(fields.number("dollars"), fields.whole("requests"), fields.whole("tokens"), since)
    if spent.dollars < 0 or since < 0:
        raise BadRecord("a number in it cannot be")
    return spent
