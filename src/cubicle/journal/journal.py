"""The journals of all chats, as the event loop uses them: record, settle, read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from cubicle.core.chat import Chat
from cubicle.journal import anchor, format, reading
from cubicle.journal.aging import CalmClock, with_old_segments
from cubicle.journal.format import Entry
from cubicle.journal.identities import CallIndex, Identities
from cubicle.journal.startup import read_numbers
from cubicle.journal.writer import Add, AddBlob, Forget, Lost, Operation, Prune, Release, Work, Writer
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

MAX_WAITING = 32 << 20
"""Bytes that wait to be written; further entries are not kept, and the journal says so."""
_GATHER_SECONDS = 0.05
"""What nobody waits for is written within this."""
_TIMEOUT = 10.0
"""Seconds that a caller waits for the disk."""
_MAX_HEADS = 5_000
"""Chats in use; of the others only the last number is known."""
_SAVE_EVERY = 60.0
_SAVES_A_PRUNING = 60
_MISSING = "The end of the journal was missing when the service started"
_CALM_SECONDS = 3000.0
_SMALLEST_CALL = 300
"""Bytes that the two lines of a call take at least."""


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call as the journal has it."""

    begin: Entry
    end: Entry | None
    """None: the journal does not know its end."""


@dataclass(slots=True)
class _Head:
    """What is known of one chat: its last number, and what waits to be written."""

    digest: str
    number: int = 0
    operations: list[Operation] = field(default_factory=list)
    waiters: list[asyncio.Future[bool]] = field(default_factory=list)
    size: int = 0
    """Bytes that wait."""
    sync: bool = False
    dirty: bool = False
    """Something was recorded that is not known to be on disk."""
    settled: int = 0
    """The last number that is on disk."""
    writing: bool = False
    released: bool = False

    @property
    def idle(self) -> bool:
        return not (self.operations or self.waiters or self.writing or self.dirty)


class Journal:
    """One append-only journal a chat. `limit` is the bytes that each may take; 0: nothing is kept."""

    def __init__(self, folder: Path, *, limit: int = 2 << 20, max_age: float = 30 * 86400) -> None:
        self._folder = folder
        self._limit = limit
        self._max_age = max_age
        self._clock = CalmClock(_CALM_SECONDS)
        self._keeper: asyncio.Task[None] | None = None
        self._heads: OrderedDict[str, _Head] = OrderedDict()
        self._saved: dict[bytes, int] = {}
        self._numbers: dict[bytes, int] = {}  # the last one of each chat that is not in use
        self._before: dict[bytes, int] = {}  # as a service before this one left them, until somebody asks
        self._ready: dict[str, _Head] = {}
        """Chats with something to write, in their order."""
        self._in_flight: list[tuple[_Head, list[asyncio.Future[bool]], bool]] = []
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._stuck = False
        self._closed = True
        self._told: Callable[[Chat, Entry], None] | None = None
        self._identities = Identities(max(1_000, limit // _SMALLEST_CALL))
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._loading: dict[str, asyncio.Event] = {}
        self._writer = Writer(folder, limit, self._tell)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._limit:
            self._numbers, known = await asyncio.to_thread(read_numbers, self._folder, self._limit)
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT):
                await asyncio.gather(*flushed)
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
        """Call this with each entry as it is recorded; the last one who asks is told."""
        self._told = told

    # ---- writing

    def record(self, chat: Chat, kind: str, fields: Mapping[str, object]) -> int:
        """Add an entry; its number in this chat. Does not wait: `settle` does. `fields` are not used afterwards."""
        if self._closed:
            return 0
        digest = chat.digest
        head = self._heads.get(digest) or self._use(digest)
        head.number += 1
        at = time.time()
        body = format.body(at, kind, fields)
        if self._waiting + len(body) <= MAX_WAITING:
            self._queue(head, Add(head.number, body), len(body))
        elif head.operations and isinstance(head.operations[-1], Lost):
            head.operations[-1] = Lost(head.number)
        else:
            self._queue(head, Lost(head.number), 0)
        index = self._identities.of(digest)
        if index is not None:
            index.add(head.number, kind, fields)
        if self._told is not None:
            self._told(chat, Entry(head.number, at, kind, fields))
        return head.number

    def keep_blob(self, chat: Chat, data: bytes) -> str:
        """Keep bytes that the next entry names by this SHA-256. What is too large for the journal is not kept."""
        digest = hashlib.sha256(data).hexdigest()
        if not self._closed and len(data) <= self.max_blob and self._waiting + len(data) <= MAX_WAITING:
            self._queue(self._heads.get(chat.digest) or self._use(chat.digest), AddBlob(digest, data), len(data))
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

    def _use(self, digest: str) -> _Head:
        number = self._numbers.pop(bytes.fromhex(digest), 0)
        head = self._heads[digest] = _Head(digest, number, settled=number)
        return head

    def _let_go(self, head: _Head) -> None:
        """Keep no more of a chat than its last number."""
        del self._heads[head.digest]
        if head.number:
            self._numbers[bytes.fromhex(head.digest)] = head.number

    def _queue(self, head: _Head, operation: Operation, size: int) -> None:
        head.released = False
        head.operations.append(operation)
        head.dirty = True
        self._waiting += size
        head.size += size
        self._ready[head.digest] = head
        if self._timer is None:
            self._timer = self._loop.call_later(_GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        """What nobody waits for has waited for long enough."""
        self._timer = None
        for head in self._ready.values():
            head.sync = True
        self._hurry()

    def _flush(self, head: _Head, *, sync: bool) -> asyncio.Future[bool]:
        """Done when what waits is written, and on disk if `sync`."""
        done: asyncio.Future[bool] = self._loop.create_future()
        if self._stuck:
            done.set_result(False)
            return done
        head.waiters.append(done)
        head.sync = head.sync or sync
        self._ready[head.digest] = head
        self._hurry()
        return done

    def _hurry(self) -> None:
        """Hand over at the end of this turn of the loop: calls that end together make one batch."""
        if self._soon is None and not self._in_flight:
            self._soon = self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give the thread what is wanted now, one batch at a time; the rest may become a part of the next."""
        self._soon = None
        wanted = [head for head in self._ready.values() if head.sync or head.waiters]
        if self._in_flight or not wanted:
            return
        batch = []
        for head in wanted:
            del self._ready[head.digest]
            self._waiting -= head.size
            batch.append(Work(head.digest, head.operations, head.sync))
            self._in_flight.append((head, head.waiters, head.sync))
            head.operations, head.waiters, head.sync, head.size, head.writing = [], [], False, 0, True
        self._watchdog = self._loop.call_later(_TIMEOUT, self._give_up)
        self._writer.put(batch)

    def _give_up(self) -> None:
        """The disk does not answer. Nobody waits for it any more until it does."""
        log.error("the disk of the journal does not answer: calls are answered before they are on disk")
        self._stuck = True
        for _, waiters, _ in self._in_flight:
            _answer(waiters, kept=False)
        for head in self._ready.values():
            _answer(head.waiters, kept=False)
            head.waiters = []

    def _tell(self, kept: Sequence[bool]) -> None:
        """In the thread: a batch is done."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._written, kept)

    def _written(self, kept: Sequence[bool]) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        done, self._in_flight, self._stuck = self._in_flight, [], False
        for (head, waiters, sync), whole in zip(done, kept, strict=True):
            head.writing = False
            if not head.operations and (sync or not whole):
                head.dirty = False
                head.settled = head.number if whole else head.settled
            _answer(waiters, kept=whole)
            news = self._news.pop(head.digest, None)
            if news is not None:
                news.set()
            if head.idle and (head.released or not head.number):
                self._let_go(head)
        while len(self._heads) > _MAX_HEADS and (oldest := next(iter(self._heads.values()))).idle:
            self._let_go(oldest)
        self._hand_over()

    def _note_missing(self, digest: str, number: int) -> None:
        """A journal ends before an entry that it is known to have had."""
        head = self._use(digest)
        log.error(
            "the end of a journal is missing: entries %d to %d", head.number + 1, number, extra={"folder": digest}
        )
        head.number = number
        self._queue(head, Lost(number, _MISSING), 0)

    async def _keep(self) -> None:
        """Saves the numbers, and drops what is too old."""
        while True:
            for _ in range(_SAVES_A_PRUNING):
                await asyncio.sleep(_SAVE_EVERY)
                await self._save_numbers()
            try:
                await self.prune(self._clock.now())
            except OSError as error:
                log.warning("old entries of journals could not be dropped: %s", error.strerror)

    async def _save_numbers(self) -> None:
        """Only what is on disk counts: an entry that waits may be lost with the service."""
        numbers = self._numbers | {
            bytes.fromhex(head.digest): head.settled for head in self._heads.values() if head.settled
        }
        if numbers != self._saved:
            try:
                await asyncio.to_thread(anchor.save, self._folder, numbers)
                self._saved = numbers
            except OSError as error:
                log.warning("the numbers of the journals could not be saved: %s", error.strerror)

    async def prune(self, now: float | None) -> None:
        """Drop what is too old at this date; None: the date is not to be trusted."""
        if now is None:
            return
        before = now - self._max_age
        for digest in await asyncio.to_thread(with_old_segments, self._folder, before):
            if digest in self._heads or bytes.fromhex(digest) in self._numbers:
                self._queue(self._heads.get(digest) or self._use(digest), Prune(before), 0)

    # ---- reading

    async def entries(self, chat: Chat, after: int = 0, limit: int = 1000) -> Sequence[Entry]:
        """Entries with a higher number, in their order."""
        await self._settle_written(chat.digest)
        return await asyncio.to_thread(reading.read_entries, self._folder / chat.digest, after, limit)

    async def _settle_written(self, digest: str) -> None:
        head = self._heads.get(digest)
        if head is not None and (head.operations or head.writing) and not self._closed:
            await self._flush(head, sync=False)

    async def follow(self, chat: Chat, after: int = 0) -> AsyncIterator[Entry]:
        """What is kept after an entry, then what comes."""
        while True:
            news = self._news.setdefault(chat.digest, asyncio.Event())
            for entry in await self.entries(chat, after):
                after = max(after, entry.number)
                yield entry
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
        index = await self._index(chat)
        found = index.find(identity)
        if found is None:
            return None
        await self._settle_written(chat.digest)
        begin, end = await asyncio.to_thread(reading.read_call, self._folder / chat.digest, *found)
        if begin is None or begin.fields.get("identity") != identity:
            return None
        return KeptCall(begin, end if end is not None and end.fields.get("call") == begin.fields.get("call") else None)

    async def _index(self, chat: Chat) -> CallIndex:
        digest = chat.digest
        index = self._identities.of(digest)
        if index is None:
            index = self._identities.make(digest)
            if digest not in self._heads and bytes.fromhex(digest) not in self._numbers:
                index.load(())
            else:
                await self._load(chat, index)
        elif not index.loaded and digest in self._loading:
            await self._loading[digest].wait()
        self._identities.use(digest)
        return index

    async def _load(self, chat: Chat, index: CallIndex) -> None:
        done = self._loading[chat.digest] = asyncio.Event()
        try:
            await self._settle_written(chat.digest)
            folder = self._folder / chat.digest
            index.load(await asyncio.to_thread(reading.read_entries, folder, 0, 1 << 40))
        finally:
            if not index.loaded:
                self._identities.forget(chat.digest)
            del self._loading[chat.digest]
            done.set()


def no_journal() -> Journal:
    """One that keeps nothing."""
    return Journal(Path(), limit=0)


def _answer(waiters: Sequence[asyncio.Future[bool]], *, kept: bool) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(kept)
