"""Which chats this member owns, and who owns the others.

The first member that is asked for a chat owns it, until its process ends: everything that is kept of a chat in memory
is kept there. What is known of other owners is a guess that is corrected when it turns out to be wrong; what this
member owns is certain, for nobody takes a chat from a member that is known to live.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from cubicle.core.chat import Chat
from cubicle.members.records import MemberRecords, NoRecords, Ownership
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Between two looks for members that ended."""
_MAX_GUESSES = 50_000
_MAX_EMPTY = 10_000
"""Chats without a sandbox that a member owns: asking for chats that do not exist fills nothing."""
_TRIES = 5
_MAX_CONCURRENT = 16
"""Chats that are taken over at once: of a sandbox on a node that is lost, it takes seconds to find that out."""

Taken = Callable[[Chat], Awaitable[None]]
"""Called with a chat that this member is asked for and owns from now on, before anybody uses it."""


class Owners:
    """`slot` of `slots` is this member's part of the chats that nobody has asked for yet."""

    def __init__(self, records: MemberRecords, *, slot: int = 1, slots: int = 1) -> None:
        self.records = records
        self._slot, self._slots = slot, slots
        self._mine: dict[str, int] = {}
        """The epoch of each chat that this member owns."""
        self._guesses: OrderedDict[str, str] = OrderedDict()
        self._settling: dict[str, asyncio.Task[str | None]] = {}
        self._giving: dict[str, asyncio.Future[None]] = {}
        """Chats that were its own, of which something may still be written, or whose row is about to go: it does not
        take them before that."""
        self._unreleased: dict[str, int] = {}
        """The epochs of chats that it left, whose records may still name it: they are released with the next ones."""
        self._lapses = 0
        """How often it has looked at what is its own, because others may have taken it for dead."""
        self.leaving = False
        """It takes no more chats: those that come are another's."""
        self.read: Callable[[str], Awaitable[None]] = _nothing
        """Called with the digest of each chat that it takes: reads what is on disk of it."""
        self.give: Callable[[str], Awaitable[None]] = _nothing
        """Called with the digest of each chat that it leaves to others: writes what is not on disk."""
        self.taken: Taken = _nothing_taken
        self.lost: Callable[[str], None] = lambda digest: None
        """Called with each chat that another has taken."""
        self.keeps: Callable[[str], bool] = lambda digest: True
        """Whether something of a chat is kept here."""
        self.chat_of: Callable[[str], Awaitable[Chat | None]] = _unknown
        """Which chat a digest is, as far as that is written down."""

    @property
    def name(self) -> str:
        return self.records.name

    def owns(self, digest: str) -> bool:
        return digest in self._mine

    def owned(self) -> Sequence[str]:
        """The chats that it owns."""
        return list(self._mine)

    async def still_owns(self, digest: str) -> bool:
        """Whether a chat is its own by the records, too; if not, it looks at all that it owns. Asked when something of
        the chat says that another has it."""
        epoch = self._mine.get(digest)
        try:
            found = await self.records.owner(digest)
        except NoRecords as error:
            log.warning("%s", error)
            return False
        still = epoch is not None and found == Ownership(self.name, epoch)
        self.records.lapsed = self.records.lapsed or not still
        return still

    async def place(self, chat: Chat) -> str | None:
        """The member that owns the chat; None if it is this one, as for a chat that nobody owned. Raises NoRecords."""
        if chat.digest in self._mine:
            return None
        guess = self._guesses.get(chat.digest)
        if guess is not None:
            return guess
        task = self._settling.get(chat.digest)
        if task is None:
            task = self._settling[chat.digest] = start_task(self._settle(chat), name="own a chat")
            task.add_done_callback(lambda done: self._settling.pop(chat.digest, None))
        return await asyncio.shield(task)

    def doubt(self, chat: Chat, holder: str) -> None:
        """This member could not be reached, or does not own the chat: look again the next time."""
        if self._guesses.get(chat.digest) == holder:
            del self._guesses[chat.digest]

    async def claim(self, digests: Iterable[str]) -> Collection[str]:
        """At the start: of these chats, those that are this member's part, and those that nobody else owns."""
        mine = set()
        for digest in digests:
            if _part(digest, self._slots) == self._slot - 1 and await self.claim_one(digest):
                mine.add(digest)
        return mine

    async def claim_one(self, digest: str) -> bool:
        """Own a chat that nobody living owns; whether this member owns it."""
        if digest in self._mine:
            return True
        await self._given(digest)
        if self.leaving:
            return False
        try:
            seen = await self.records.owner(digest)
            if seen is not None and await self.records.is_alive(seen.holder):
                return False
            self._unreleased.pop(digest, None)
            got, lapses = await self.records.take(digest, seen), self._lapses
            if got.holder != self.name or not await self._can_read(digest, got.epoch):
                return False
            if not await self._is_still_its_own(digest, got.epoch, lapses):
                return False
        except NoRecords as error:
            log.error("%s", error)
            return False
        self._mine[digest] = got.epoch
        self._guesses.pop(digest, None)
        return True

    async def release(self, digests: Collection[str]) -> None:
        """Let another own these, once what is kept of them is on disk. From the call on they are not used here."""
        left = {digest: epoch for digest, epoch in self._unreleased.items() if digest not in self._mine}
        self._unreleased = {}
        with self._leaving(digests) as epochs, self._held_back(left):
            try:
                for digest in epochs:
                    await self.give(digest)
                await self.records.release({**left, **epochs})
            except BaseException:
                self._unreleased |= {**left, **epochs}
                raise

    @contextmanager
    def _leaving(self, digests: Collection[str]) -> Iterator[Mapping[str, int]]:
        """These are not its own any more. Until the end of the block it does not take them again."""
        epochs = {digest: self._mine.pop(digest) for digest in digests if digest in self._mine}
        with self._held_back(epochs):
            yield epochs

    @contextmanager
    def _held_back(self, digests: Collection[str]) -> Iterator[None]:
        """Until the end of the block it does not take these: whoever asks for one waits."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._giving.update(dict.fromkeys(digests, done))
        try:
            yield
        finally:
            for digest in digests:
                self._giving.pop(digest, None)
            done.set_result(None)

    async def _given(self, digest: str) -> None:
        while (done := self._giving.get(digest)) is not None:
            await asyncio.shield(done)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Take over the chats of members that end, within the block. That may take its time, and what is its own is
        looked at meanwhile."""
        looks = (self._see_to_own, self._see_to_dead, self._drop_empty)
        tasks = [start_task(self._watch(look), name="members") for look in looks]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def others(self) -> Sequence[str]:
        """The other members that run."""
        return [name for name in await self.records.living() if name != self.name]

    # ---- taking

    async def _settle(self, chat: Chat) -> str | None:
        digest = chat.digest
        await self._given(digest)
        for _ in range(_TRIES):
            seen = await self.records.owner(digest)
            if seen is not None and seen.holder != self.name and await self.records.is_alive(seen.holder):
                self._guess(digest, seen.holder)
                return seen.holder
            if self.leaving:
                return await self._successor(digest)
            self._unreleased.pop(digest, None)
            got = await self.records.take(digest, seen)
            if got.holder == self.name:
                await self._own(chat, got.epoch)
                return None
        raise NoRecords("The chat changes hands at this moment.")

    async def _own(self, chat: Chat, epoch: int) -> None:
        """From now on it is this member's, unless what there is of it cannot be had."""
        lapses = self._lapses
        if not await self._can_read(chat.digest, epoch):
            raise NoRecords("What is kept of this chat cannot be read at present.")
        if epoch > 1:
            log.info("took over a chat", extra={"chat": chat.id, "epoch": epoch})
        try:
            await self.taken(chat)
        except Exception:  # its next use says why
            log.exception("the sandbox of a chat that was taken over does not answer", extra={"chat": chat.id})
        if not await self._is_still_its_own(chat.digest, epoch, lapses):
            raise NoRecords("The chat changes hands at this moment.")
        self._mine[chat.digest] = epoch
        self._guesses.pop(chat.digest, None)

    async def _is_still_its_own(self, digest: str, epoch: int, lapses: int) -> bool:
        """Whether nobody has taken it while it was being taken: a look at what is its own did not see it yet."""
        while lapses != self._lapses:
            lapses = self._lapses
            still = False
            try:
                still = await self.records.owner(digest) == Ownership(self.name, epoch)
            finally:
                if not still:
                    await self._let_go_unowned(digest)
            if not still:
                return False
        return True

    async def _let_go_unowned(self, digest: str) -> None:
        """Keep nothing of one that it had begun to take: when it takes it again, that would be old."""
        with self._held_back([digest]):
            await self._let_go(digest)

    async def _can_read(self, digest: str, epoch: int) -> bool:
        """Read what there is of a chat that was taken; one of which it cannot be had is anybody's again."""
        try:
            await self.read(digest)
        except Exception:
            log.exception("what is kept of a chat could not be read")
            await self._let_go_unowned(digest)
            await self.records.release({digest: epoch})
            return False
        return True

    async def _successor(self, digest: str) -> str:
        """Who is to own a chat that this member does not take any more."""
        others = await self.others()
        if not others:
            raise NoRecords("The service is stopping.")
        return others[int(digest[-8:], 16) % len(others)]

    async def _drop_empty(self) -> None:
        """Many at once, and on a cluster each takes two requests: nobody waits for it who asks for a chat."""
        if len(self._mine) <= _MAX_EMPTY:
            return
        empty = [digest for digest in self._mine if not self.keeps(digest)]
        if len(empty) > _MAX_EMPTY:
            await self.release(empty[: len(empty) - _MAX_EMPTY // 2])

    def _guess(self, digest: str, holder: str) -> None:
        self._guesses[digest] = holder
        self._guesses.move_to_end(digest)
        while len(self._guesses) > _MAX_GUESSES:
            self._guesses.popitem(last=False)

    # ---- members that end

    async def _watch(self, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await look()
            except NoRecords as error:
                log.warning("%s", error)
            except Exception:
                log.exception("the members could not be looked at")

    async def _see_to_own(self) -> None:
        if self.records.lapsed:
            await self._look_at_own()

    async def _see_to_dead(self) -> None:
        for holder in await self.records.dead():
            await self._take_over(holder)

    async def _look_at_own(self) -> None:
        """This member was not heard of for a while: what others have taken since is theirs."""
        self.records.lapsed = False
        self._lapses += 1
        try:
            for digest in self.owned():
                await self._look_at_one(digest)
        except BaseException:
            self.records.lapsed = True  # what was not looked at may be another's
            raise

    async def _look_at_one(self, digest: str) -> None:
        """Leave a chat that is another's by now, or nobody's: whoever took it may have released it since."""
        epoch = self._mine.get(digest)
        found = await self.records.owner(digest)
        if epoch is None or self._mine.get(digest) != epoch or (found is not None and found.holder == self.name):
            return
        log.warning("another member has taken a chat of this one", extra={"epoch": found.epoch if found else None})
        with self._leaving([digest]):
            await self._let_go(digest)

    async def _let_go(self, digest: str) -> None:
        """What is done for it here ends, and what is known of it is forgotten: another has it."""
        self.lost(digest)
        try:
            await self.give(digest)
        except Exception:
            log.exception("what was kept of a chat could not be written")

    async def _take_over(self, holder: str) -> None:
        """Own this member's part of what a dead one owned. Each living one does the same with another part."""
        for digest in [digest for digest, guess in self._guesses.items() if guess == holder]:
            del self._guesses[digest]
        living, chats = await self.records.living(), await self.records.owned_by(holder)
        if not chats:
            await self.records.bury(holder)
            return
        await self._take_part(chats, living, self._take_over_one)

    async def take_unowned(self, digests: Collection[str]) -> None:
        """Own this member's part of those of these chats that nobody has. A member that ends in order leaves its chats
        to whoever is asked for them, and until then nobody would stop their sandboxes, or remove them for their age."""
        await self._take_part(digests, await self.records.living(), self._take_unowned_one)

    async def _take_unowned_one(self, digest: str) -> None:
        if digest in self._mine:
            return
        seen = await self.records.owner(digest)
        if seen is not None and await self.records.is_alive(seen.holder):
            return
        self._guesses.pop(digest, None)
        if (chat := await self.chat_of(digest)) is not None:
            await self.place(chat)

    async def _take_part(
        self, digests: Collection[str], living: Sequence[str], take: Callable[[str], Awaitable[None]]
    ) -> None:
        """Take this member's part of these chats, some at a time. Those of which one fails are taken all the same."""
        rank = living.index(self.name) if self.name in living else 0
        part = [digest for digest in digests if _part(digest, len(living)) == rank]
        gate = asyncio.Semaphore(_MAX_CONCURRENT)

        async def take_one(digest: str) -> bool:
            async with gate:
                try:
                    if not self.leaving:
                        await take(digest)
                except NoRecords as error:
                    log.debug("%s", error)
                    return False
                except Exception:
                    log.exception("a chat of a member that ended could not be taken over")
                    return False
                return True

        done = await asyncio.gather(*map(take_one, part))
        if not all(done):
            log.warning("chats of a member that ended could not be taken over yet", extra={"chats": done.count(False)})

    async def _take_over_one(self, digest: str) -> None:
        chat = await self.chat_of(digest)
        if chat is not None:
            await self.place(chat)
        elif not any(digest in known for known in (self._mine, self._settling, self._giving)):
            await self._drop(digest)  # nothing is written down of it: it has no sandbox

    async def _drop(self, digest: str) -> None:
        """Have nobody own a dead member's chat. It is never this one's: somebody may ask for it at the same moment."""
        with self._held_back([digest]):
            seen = await self.records.owner(digest)
            if seen is None or await self.records.is_alive(seen.holder):
                return
            got = await self.records.take(digest, seen)
            if got.holder == self.name:
                await self.records.release({digest: got.epoch})


def _part(digest: str, parts: int) -> int:
    """In which of so many parts a chat is. What a damaged record has in the place of a digest is in none."""
    try:
        return int(digest[-8:], 16) % max(1, parts)
    except ValueError:
        return -1


async def _nothing(digest: str) -> None:
    pass


async def _nothing_taken(chat: Chat) -> None:
    pass


async def _unknown(digest: str) -> Chat | None:
    return None
