"""The journals of all chats, as the event loop uses them: record, settle, read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from cubicle.core.chat import Chat
from cubicle.fairness.fair_slots import FairSlots
from cubicle.journal import format, reading
from cubicle.journal.aging import find_old
from cubicle.journal.format import Entry
from cubicle.journal.head import Head, InFlight
from cubicle.journal.identities import SMALLEST_CALL, Identities
from cubicle.journal.lookup import CallLookup, KeptCall
from cubicle.journal.startup import JournalNumbers, imported_number
from cubicle.journal.waiting import WaitingBytes
from cubicle.journal.writer import Add, AddBlob, Forget, Lost, Operation, Prune, Release, Work, Writer
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_Found = TypeVar("_Found")

_MAX_HELD = 16 << 20
"""Bytes that wait for sandboxes; what is more is written although its chat has none."""
_GATHER_SECONDS = 0.2
"""What nobody waits for is written after this. Most calls have ended by then: their two lines are one write."""
_TIMEOUT = 10.0
"""Seconds that a caller waits for the disk."""
_MAX_HEADS = 5_000
"""Chats in use; of the others only the last number is known."""
_SAVE_EVERY = 60.0
_PRUNE_EVERY = 3600.0
_PAGE = 1_000
"""Entries that are read at once for one who follows."""
_MISSING = "The end of the journal was missing when the service started"
CALL_KINDS = ("call", "output", "end")


class Journal:
    """One append-only journal a chat. `limit` is the bytes that each may take; 0: nothing is kept."""

    def __init__(self, folder: Path, *, limit: int = 2 << 20, max_age: float = 30 * 86400) -> None:
        self._folder = folder
        self._limit = limit
        self._max_age = max_age
        self._clock: Callable[[], float | None] = lambda: None
        self._keeper: asyncio.Task[None] | None = None
        self._forgot = asyncio.Event()
        """A chat is gone for good: the numbers are saved now, or the next service would miss its journal."""
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._saved: dict[bytes, int] = {}
        self._numbers: dict[bytes, int] = {}  # the last one of each chat that is not in use
        self._before: dict[bytes, int] = {}  # as a service before this one left them, until somebody asks
        self._ready: dict[str, Head] = {}
        """Chats with something to write that nobody waits for, in their order."""
        self._in_flight: deque[InFlight] = deque()
        self._waiting = WaitingBytes()
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._stuck = False
        self._closed = True
        self._holds = False
        self._sandboxes: Counter[str] = Counter()
        """The chats whose sandbox is up."""
        self._told: Callable[[Chat, Entry], None] | None = None
        self._identities = Identities(max(1_000, limit // SMALLEST_CALL))
        self._lookup = CallLookup(folder, self._identities, self._settle_written)
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._scans = FairSlots(total=4, of_tenant=2, of_chat=256)
        self._writer = Writer(folder, limit, self._tell)
        self._anchor = JournalNumbers(folder, limit)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._limit:
            self._numbers, known = await asyncio.to_thread(self._anchor.read)
            self._before = dict(self._numbers)
            self._writer.start()
            self._closed = False
            for key, number in known.items():
                self._note_missing(key.hex(), number)
            self._keeper = start_task(self._keep(), name="journal")
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Write what waits; a disk that does not answer is not waited for."""
        if self._closed:
            return
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        flushed = [self._flush(head, sync=True) for head in self._heads.values() if head.dirty]
        self._closed = True
        if flushed:
            await asyncio.wait(flushed, timeout=_TIMEOUT)
        if self._watchdog is not None:
            self._watchdog.cancel()
        await asyncio.to_thread(self._writer.stop, _TIMEOUT)
        await self._save_numbers()

    @property
    def keeps(self) -> bool:
        """Whether anything is kept."""
        return not self._closed

    @property
    def max_blob(self) -> int:
        """Bytes of the largest blob that is kept."""
        return self._limit // 4

    def watch(self, told: Callable[[Chat, Entry], None]) -> None:
        """Call this with each entry that is no call's, as it is recorded; the last one who asks is told."""
        self._told = told

    def attend(self, clock: Callable[[], float | None]) -> None:
        """Somebody says from now on which chats have a sandbox: no call makes a journal for a chat without one.

        `clock` is that of the service, by which entries age; None while nothing is to be dropped.
        """
        self._holds, self._clock = True, clock

    @contextlib.contextmanager
    def with_sandbox(self, chat: Chat) -> Iterator[None]:
        """The chat has a sandbox that is up, while the block runs: its calls are written down."""
        digest = chat.digest
        self._sandboxes[digest] += 1
        if (head := self._heads.get(digest)) is not None:
            self._let_loose(head)
        try:
            yield
        finally:
            self._sandboxes[digest] -= 1
            if not self._sandboxes[digest]:
                del self._sandboxes[digest]

    # ---- writing

    def record(self, chat: Chat, kind: str, fields: Mapping[str, object], *, hold: bool = False) -> int:
        """Add an entry; its number in this chat. Does not wait: `settle` does. `fields` are not used afterwards.

        `hold`: it is no reason to begin a journal. Without a sandbox it waits, and goes when the last call has ended.
        """
        if self._closed:
            return 0
        digest = chat.digest
        head = self._heads.get(digest) or self._use(digest)
        head.tenant = chat.tenant
        if not hold:
            self._let_loose(head)
        elif self._holds and not head.number and head.idle and digest not in self._sandboxes:
            head.held = True
        head.number += 1
        at = time.time()
        body = format.body(at, kind, fields)
        if self._waiting.has_room(chat.tenant, len(body)):
            self._queue(head, Add(head.number, body), len(body))
        elif head.operations and isinstance(head.operations[-1], Lost):
            head.operations[-1] = Lost(head.number)
        else:
            self._queue(head, Lost(head.number), 0)
        if (index := self._identities.of(digest)) is not None:
            index.add(head.number, kind, fields)
        if self._told is not None and kind not in CALL_KINDS:
            self._told(chat, Entry(head.number, at, kind, fields))
        if head.held:
            head.open_calls += (kind == "call") - (kind == "end")
            if head.open_calls <= 0:
                self._drop(head)
        return head.number

    def keep_blob(self, chat: Chat, data: bytes) -> str:
        """Keep bytes that the next entry names by this SHA-256. What is too large for the journal is not kept."""
        digest = hashlib.sha256(data).hexdigest()
        size = len(data)
        if not self._closed and size <= self.max_blob and self._waiting.has_room(chat.tenant, size, blob=True):
            head = self._heads.get(chat.digest) or self._use(chat.digest)
            head.tenant = chat.tenant
            self._queue(head, AddBlob(digest, data), size)
        return digest

    def forget(self, chat: Chat) -> None:
        """The chat is gone for good: so is its journal."""
        self.forget_digest(chat.digest)

    def forget_digest(self, digest: str) -> None:
        """The same for a chat of which only the name of its folder is known."""
        self._identities.forget(digest)
        self._before.pop(bytes.fromhex(digest), None)
        if not self._closed and (digest in self._heads or bytes.fromhex(digest) in self._numbers):
            head = self._heads.get(digest) or self._use(digest)
            head.number = 0
            self._queue(head, Forget(), 0)

    def release(self, chat: Chat) -> None:
        """The chat is in the trash: nothing of its journal is held open or in memory."""
        self._identities.forget(chat.digest)
        head = self._heads.get(chat.digest)
        if head is not None and not self._closed:
            self._queue(head, Release(), 0)
            head.released = True

    async def settle(self, chat: Chat) -> bool:
        """Wait until everything recorded before is on disk; False if it could not be kept there."""
        head = self._heads.get(chat.digest)
        if head is None or not head.dirty or self._closed:
            return True
        return await self._flush(head, sync=True)

    def hurry(self, chat: Chat) -> None:
        """Have what was recorded written now, and wait for nothing: the end of the service does not lose it."""
        head = self._heads.get(chat.digest)
        if head is not None and head.operations and not (head.held or self._closed or self._stuck):
            self._hand_over(head, sync=False)

    def _use(self, digest: str) -> Head:
        number = self._numbers.pop(bytes.fromhex(digest), 0) or imported_number(self._folder, digest)
        head = self._heads[digest] = Head(digest, number, settled=number)
        return head

    def _let_go(self, head: Head) -> None:
        """Keep no more of a chat than its last number, if it is this process's still."""
        if self._heads.get(head.digest) is not head:
            return
        del self._heads[head.digest]
        if head.number:
            self._numbers[bytes.fromhex(head.digest)] = head.number

    def _drop(self, head: Head) -> None:
        """The chat has got no sandbox: nothing of it is kept."""
        self._held -= head.size
        self._identities.forget(head.digest)
        del self._heads[head.digest]

    def _let_loose(self, head: Head) -> None:
        """What was held is written as everything is."""
        if not head.held:
            return
        head.held = False
        self._held -= head.size
        self._waiting.change(head.tenant, head.size)
        if head.operations:
            self._ask_for(head)

    def _queue(self, head: Head, operation: Operation, size: int) -> None:
        head.released = False
        head.operations.append(operation)
        head.size += size
        if head.held:
            self._held += size
            if self._held > _MAX_HELD:
                self._let_loose(head)
        else:
            self._waiting.change(head.tenant, size)
            self._ask_for(head)

    def _ask_for(self, head: Head) -> None:
        head.dirty = True
        self._line_up(head)
        if self._timer is None:
            self._timer = self._loop.call_later(_GATHER_SECONDS, self._gathered)

    def _line_up(self, head: Head) -> None:
        if head.digest not in self._ready:
            self._ready[head.digest], head.since = head, self._loop.time()

    def _gathered(self) -> None:
        """Some of what nobody waits for has waited for long enough. The rest may go with the end of its call."""
        self._timer = None
        now = self._loop.time()
        latest = now - 0.95 * _GATHER_SECONDS  # a timer may come a little too early
        if not self._stuck:
            for head in [head for head in self._ready.values() if head.since <= latest]:
                self._hand_over(head, sync=True)
        if self._ready:
            first = now if self._stuck else min(head.since for head in self._ready.values())
            self._timer = self._loop.call_at(first + _GATHER_SECONDS, self._gathered)

    def _flush(self, head: Head, *, sync: bool) -> asyncio.Future[bool]:
        """Done when what waits is written, and on disk if `sync`."""
        done: asyncio.Future[bool] = self._loop.create_future()
        if self._stuck:
            done.set_result(False)
        else:
            self._hand_over(head, sync=sync, waiter=done)
        return done

    def _hand_over(self, head: Head, *, sync: bool, waiter: asyncio.Future[bool] | None = None) -> None:
        """Give it to the thread, which takes all that came while it was at work as one batch."""
        self._ready.pop(head.digest, None)
        self._in_flight.append(InFlight(head, head.size, sync, self._loop.time(), waiter))
        self._writer.put(Work(head.digest, head.operations, sync))
        head.operations, head.size = [], 0
        head.writing += 1
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(_TIMEOUT, self._watch)

    def _watch(self) -> None:
        """Look whether the disk answers. If not, nobody waits for it any more until it does."""
        self._watchdog = None
        if not self._in_flight:
            return
        late = self._in_flight[0].since + _TIMEOUT - self._loop.time()
        if late > 0:
            self._watchdog = self._loop.call_later(late, self._watch)
            return
        log.error("the disk of the journal does not answer: calls are answered before they are on disk")
        self._stuck = True
        for one in self._in_flight:
            one.answer(kept=False)

    def _tell(self, kept: Sequence[bool]) -> None:
        """In the thread: so much of what was handed over is done."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._written, kept)

    def _written(self, kept: Sequence[bool]) -> None:
        self._stuck = False
        for whole in kept:
            self._settled(self._in_flight.popleft(), whole=whole)
        while len(self._heads) > _MAX_HEADS and (oldest := next(iter(self._heads.values()))).idle:
            self._let_go(oldest)

    def _settled(self, done: InFlight, *, whole: bool) -> None:
        head = done.head
        head.writing -= 1
        self._waiting.change(head.tenant, -done.size)
        if not (head.operations or head.writing):
            if done.sync or not whole:
                head.dirty = False
                head.settled = head.number if whole else head.settled
            elif head.dirty and not self._closed:
                self._ask_for(head)  # it is written, and not yet on disk
        done.answer(kept=whole)
        if self._news and (news := self._news.pop(head.digest, None)) is not None:
            news.set()
        if head.idle and (head.released or not head.number):
            self._let_go(head)
            if not head.number:
                self._forgot.set()

    def _note_missing(self, digest: str, number: int) -> None:
        """A journal ends before an entry that it is known to have had."""
        head = self._use(digest)
        said = "the end of a journal is missing: entries %d to %d"
        log.error(said, head.number + 1, number, extra={"folder": digest})
        head.number = number
        self._queue(head, Lost(number, _MISSING), 0)

    async def _keep(self) -> None:
        """Saves the numbers, and drops what is too old."""
        pruned = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._forgot.wait(), _SAVE_EVERY)
            self._forgot.clear()
            await self._save_numbers()
            if time.monotonic() - pruned < _PRUNE_EVERY:
                continue
            pruned = time.monotonic()
            try:
                await self.prune(self._clock())
            except OSError as error:
                log.warning("old entries of journals could not be dropped: %s", error.strerror)

    async def _save_numbers(self) -> None:
        """Only what is on disk counts: an entry that waits may be lost with the service."""
        settled = {bytes.fromhex(head.digest): head.settled for head in self._heads.values() if head.settled}
        if (numbers := self._numbers | settled) != self._saved or self._anchor.forgotten:
            try:
                gone = await asyncio.to_thread(self._anchor.save, numbers)
                self._saved = {key: number for key, number in numbers.items() if key not in gone}
                for key in gone:
                    self._numbers.pop(key, None)
            except OSError as error:
                log.warning("the numbers of the journals could not be saved: %s", error.strerror)

    async def prune(self, now: float | None) -> None:
        """Drop what is too old at this reading of the service's clock; None: nothing is."""
        if now is None:
            return
        for old in await asyncio.to_thread(find_old, self._folder, now, self._max_age):
            if old.chat in self._heads or bytes.fromhex(old.chat) in self._numbers:
                self._queue(self._heads.get(old.chat) or self._use(old.chat), Prune(old.number, old.size), 0)

    # ---- reading

    async def entries(self, chat: Chat, after: int = 0, limit: int = 1000) -> Sequence[Entry]:
        """Entries with a higher number, in their order."""
        await self._settle_written(chat.digest)
        return await asyncio.to_thread(reading.read_entries, self._folder / chat.digest, after, limit)

    async def scan(self, chat: Chat, look: Callable[[Iterable[Entry]], _Found]) -> _Found:
        """What this finds in all entries, in a thread: a segment of them is in memory at a time. Raises Busy."""
        async with self._scans.hold(chat):
            await self._settle_written(chat.digest)
            return await asyncio.to_thread(lambda: look(reading.all_entries(self._folder / chat.digest)))

    async def _settle_written(self, digest: str) -> None:
        head = self._heads.get(digest)
        if head is not None and (head.operations or head.writing) and not (head.held or self._closed):
            await self._flush(head, sync=False)

    async def follow(self, chat: Chat, after: int = 0) -> AsyncIterator[Entry]:
        """What is kept after an entry, then what comes."""
        while True:
            news = self._news.setdefault(chat.digest, asyncio.Event())
            page = await self.entries(chat, after, _PAGE)
            for entry in page:
                after = max(after, entry.number)
                yield entry
            if len(page) < _PAGE:
                await news.wait()

    async def blob(self, chat: Chat, digest: str) -> bytes | None:
        """A blob; None if it is not kept."""
        await self._settle_written(chat.digest)
        return await asyncio.to_thread(reading.read_blob, self._folder / chat.digest, digest)

    def take_before(self, chat: Chat) -> int:
        """The number of the last entry of the service before this one; 0 when that was asked already."""
        return self._before.pop(bytes.fromhex(chat.digest), 0)

    def put_back(self, chat: Chat, before: int) -> None:
        """What was done with that number failed: who asks next gets it again."""
        key = bytes.fromhex(chat.digest)
        if chat.digest in self._heads or key in self._numbers:
            self._before.setdefault(key, before)

    async def find_call(self, chat: Chat, identity: str) -> KeptCall | None:
        """The newest call with this identity, if the journal still has it."""
        if self._closed or not identity:
            return None
        known = chat.digest in self._heads or bytes.fromhex(chat.digest) in self._numbers
        return await self._lookup.find(chat.digest, identity, is_new=not known)


def no_journal() -> Journal:
    """One that keeps nothing."""
    return Journal(Path(), limit=0)
