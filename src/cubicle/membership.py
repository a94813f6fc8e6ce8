"""The process of a service: the only one, or one of several (docs/replicas.md). Made once, and joined to the parts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path

from starlette.types import ASGIApp

from cubicle.core.chat import Chat
from cubicle.http_api.forwarding import Forwarder
from cubicle.http_api.home_elsewhere import HOME, Ask
from cubicle.http_api.member_side import MemberSide
from cubicle.http_api.metrics import OtherPages
from cubicle.http_api.peers import METRICS, SANDBOXES, TAKE, Peers, told
from cubicle.journal.journal import Journal
from cubicle.journal.shared import SharedJournal
from cubicle.machine.errors import Unusable
from cubicle.members.hop_keys import HopKeys
from cubicle.members.owners import Owners
from cubicle.members.records import MemberRecords, NoRecords
from cubicle.ports.shares import PortShares
from cubicle.sandbox.driver import Driver, ReplicatedDriver
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.sharing import Alone, LeftToAnother
from cubicle.sandbox.slot import Overview
from cubicle.sandbox.warm_pool import Part
from cubicle.tasks import repeated

log = logging.getLogger(__name__)

_HAND_OVER_SECONDS = 0.2
_UNOWNED_SECONDS = 600.0
"""Between two looks for chats that nobody has."""

Tells = Callable[[bytes], Awaitable[bytes]]
"""What a member answers to another one's query."""
Drain = Callable[[Callable[[], bool]], Awaitable[None]]
"""Waits until what runs is done, or the function that it is given says that it is enough."""


class ServiceProcess(Alone):
    """The only one. It is the `Sharing` of the fleet."""

    forwarder: Forwarder | None = None
    """Has requests answered by other members."""
    is_first = True
    """Whether it tries the isolation and looks after the images: what it finds holds for the others."""
    is_shared = False
    """Whether there are others."""
    journal_kind: type[Journal] = Journal
    other_metrics: OtherPages | None = None
    """The metrics of the others."""
    ask_others: Ask | None = None
    """Asks all others for what members tell each other."""

    @property
    def leads(self) -> bool:
        """Whether it does what one process does for all."""
        return self.part.slot == 1

    def own(self, path: Path) -> Path:
        """Where this process keeps what each keeps for itself."""
        number = "" if self.leads else f"-{self.part.slot}"
        return path.with_name(f"{path.stem}{number}{path.suffix}")

    def others(self, path: Path) -> list[Path]:
        """Where other processes do, or did: what tenants used is the sum."""
        left = [each for each in path.parent.glob(f"{path.name}-*") if each.name.rpartition("-")[2].isdecimal()]
        slots = [path.with_name(f"{path.name}-{slot}") for slot in range(2, self.part.slots + 1)]
        return [each for each in dict.fromkeys([path, *slots, *left]) if each != self.own(path)]

    def running(self, fleet: Fleet) -> AbstractAsyncContextManager[None]:
        """Take chats that clients ask for, and those of members that end, within the block."""
        return nullcontext()

    def read_from(self, driver: Driver, journal: Journal, shares: PortShares) -> None:
        """From these comes what there is of a chat that it takes."""

    def draining(self, drain: Drain, fleet: Fleet) -> Drain:
        """The same end of the process, during which its chats go to other members."""
        return drain

    def member_side(self, app: ASGIApp, fleet: Fleet, metrics: Callable[[], Awaitable[bytes]], home: Tells) -> ASGIApp:
        """What answers the other members."""
        return app


class Membership(ServiceProcess):
    """One of `slots` processes. `first`: of its service."""

    is_shared = True
    journal_kind = SharedJournal

    def __init__(
        self, records: MemberRecords, keys: HopKeys, *, slot: int = 1, slots: int = 1, first: bool = False
    ) -> None:
        self.is_first = first
        self._keys = keys
        self.part = Part(slot, slots)
        self.owners = Owners(records, slot=slot, slots=slots)
        self._forwarder = self.forwarder = Forwarder(self.owners, keys)
        self._peers = Peers(self._forwarder)
        self._driver: Driver | None = None
        self.other_metrics, self.ask_others = self._ask_metrics, self._ask

    @asynccontextmanager
    async def open(self) -> AsyncIterator[socket.socket]:
        """Be a member, within the block; where others reach it. Raises Unusable."""
        try:
            listening = await self.owners.records.open()
        except NoRecords as error:
            raise Unusable(str(error)) from None
        try:
            yield listening
        finally:
            self._forwarder.close()
            listening.close()
            await self.owners.records.close()

    @asynccontextmanager
    async def running(self, fleet: Fleet) -> AsyncIterator[None]:
        self.owners.taken, self.owners.lost = fleet.take_in, fleet.lose
        self.owners.keeps = fleet.holds
        self.owners.chat_of = fleet.chat_of

        async def forget(chat: Chat) -> None:
            if self.owners.owns(chat.digest) and not fleet.holds(chat.digest):
                await self.owners.release([chat.digest])

        async def look() -> None:
            if self._driver is not None:
                seen = await self._driver.list()
                await self.owners.take_unowned([one.owner for one in seen if one.owner is not None])

        fleet.on_removed(forget)
        async with (
            self._peers.followed(),
            self.owners.watching(),
            self._forwarder.watching(),
            repeated(look, _UNOWNED_SECONDS, name="chats that nobody has"),
        ):
            yield

    def read_from(self, driver: Driver, journal: Journal, shares: PortShares) -> None:
        async def read(digest: str) -> None:
            await driver.take_over(digest)
            if isinstance(journal, SharedJournal):
                await journal.take(digest)
            await asyncio.to_thread(shares.look_again, digest)

        async def give(digest: str) -> None:
            if isinstance(journal, SharedJournal):
                await journal.give(digest)

        self._driver = driver
        self.owners.read, self.owners.give = read, give
        if isinstance(driver, ReplicatedDriver):
            driver.owns = self.owners.still_owns

    def draining(self, drain: Drain, fleet: Fleet) -> Drain:
        async def run(is_over: Callable[[], bool]) -> None:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._hand_over(fleet), name="hand over")
                await drain(is_over)
                task.cancel()

        return run

    async def _hand_over(self, fleet: Fleet) -> None:
        """Leave all chats to the others, each as soon as nobody uses it."""
        self.owners.leaving = True
        while True:
            held = {digest for digest in self.owners.owned() if fleet.holds(digest)}
            free = [digest for digest in self.owners.owned() if fleet.let_go(digest)]
            try:
                await self.owners.release(free)  # before it waits for anything, nobody uses them here any more
                await self._peers.offer(held.intersection(free))  # something may run in their sandboxes
            except NoRecords as error:
                log.warning("chats could not be left to other members: %s", error)
            await asyncio.sleep(_HAND_OVER_SECONDS)

    def member_side(self, app: ASGIApp, fleet: Fleet, metrics: Callable[[], Awaitable[bytes]], home: Tells) -> ASGIApp:
        async def sandboxes(query: bytes) -> tuple[str, bytes]:
            return "application/json", await told(fleet.own_overview)

        async def page(query: bytes) -> tuple[str, bytes]:
            return "text/plain", await metrics()

        async def take(query: bytes) -> tuple[str, bytes]:
            chat = await self.owners.chat_of(query.decode("ascii", "replace"))
            if chat is not None:
                with suppress(NoRecords):
                    await self.owners.place(chat)
            return "text/plain", b""

        async def own_home(query: bytes) -> tuple[str, bytes]:
            return "application/json", await home(query)

        answers = {SANDBOXES: sandboxes, METRICS: page, HOME: own_home, TAKE: take}
        return MemberSide(app, self.owners.name, self._keys, answers)

    async def _ask(self, target: bytes) -> dict[str, bytes]:
        try:
            return await self._peers.ask(target)
        except NoRecords as error:
            log.warning("other members cannot be asked: %s", error)
            return {}

    async def _ask_metrics(self) -> tuple[str, dict[str, str]]:
        pages = await self._ask(METRICS)
        return _slot(self.owners.name), {_slot(name): page.decode() for name, page in pages.items()}

    # ---- for the fleet

    async def claim(self, digests: Sequence[str]) -> Collection[str]:
        return await self.owners.claim(digests)

    async def claim_one(self, digest: str) -> bool:
        return await self.owners.claim_one(digest)

    def require(self, digest: str) -> None:
        if not self.owners.owns(digest):
            raise LeftToAnother

    def elsewhere(self) -> Iterable[Overview]:
        return self._peers.sandboxes()


def _slot(member: str) -> str:
    """The number of a member: it stays when the member starts again."""
    return member.partition("-")[0]
