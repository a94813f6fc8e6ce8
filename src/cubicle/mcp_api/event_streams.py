"""Events of answers, kept so that a client that lost its connection goes on where it was.

What a call sends is written here, and read by one response at a time: that of its request, or of a later GET. Events
that were sent are kept, within bounds, as nobody knows whether they arrived. While a client reads slowly, or is away,
the writer waits, and gathers its output into fewer and larger events meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import ref

from cubicle.core.chat import Chat

MAX_STREAMS = 4096
"""Answers under way that can be resumed; one more cannot."""
MAX_STREAMS_OF_A_TENANT = 1024
MAX_STREAMS_OF_A_CHAT = 128
MAX_UNSENT = 64 * 1024
"""Bytes of events that wait for the client before the writer waits."""
MAX_SENT = 64 * 1024
"""Bytes of events kept after they were sent."""
MAX_ENDED = 128 * 1024**2
"""Bytes of finished answers that are kept."""
MAX_ENDED_OF_A_TENANT = 64 * 1024**2
MAX_ENDED_OF_A_CHAT = 32 * 1024**2
MAX_LIVE = 128 * 1024**2
"""Bytes of answers under way. Beyond that no more can be resumed, nothing is kept that was sent, and writers wait
earlier."""
MAX_LIVE_OF_A_TENANT = 32 * 1024**2
MAX_UNSENT_WHEN_SHORT = 4 * 1024
OBJECT_SIZE = 4 * 1024
"""Bytes that a stream takes beside its events."""
DELIVERED_SECONDS = 10.0
"""For so long a finished answer is kept that was sent to its end, where the journal has it too."""
_SWEEP_SECONDS = 1.0
MAX_COUNT = 65_536
"""Finished answers that are kept."""
MAX_COUNT_OF_A_CHAT = 512

_COMMENT = b": still here\r\n\r\n"

Pieces = Sequence[bytes]


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    pieces: Pieces
    size: int


@dataclass(slots=True)
class LiveBytes:
    """How much the streams under way take."""

    total: int = 0
    of_tenants: Counter[str] = field(default_factory=Counter)

    def change(self, tenant: str, by: int) -> None:
        self.total += by
        self.of_tenants[tenant] += by
        if not self.of_tenants[tenant]:
            del self.of_tenants[tenant]

    def are_short(self, tenant: str) -> bool:
        return self.total > MAX_LIVE or self.of_tenants[tenant] > MAX_LIVE_OF_A_TENANT


class EventStream:
    """The events of the answer to one request."""

    def __init__(
        self, id: str, chat: Chat, session: str, prefix: str, grace: float, abandon: Callable[[], None]
    ) -> None:
        self.id = id
        self.chat = chat
        self.session = session
        self.ended = 0.0
        """When the answer was complete; before that 0."""
        self.was_abandoned = False
        """Whether nobody came back in time, so that it holds no answer of the call."""
        self.size = self.kept_size = 0
        """Bytes of its events, now and when the answer was complete."""
        self.events: deque[_Event] = deque()
        self.sent = -1
        """The number of the last event that the reader was sent."""
        self.readers = 0
        """How many there were: a new one takes the place of the one before."""
        self.beats = 0
        self.parted = False
        """Whether the service ends, and the client was told when to come back."""
        self.news = asyncio.Event()
        self.abandon = abandon
        """Ends the work: nobody will read its answer."""
        self.live: LiveBytes | None = None
        """Where its bytes are counted while it is under way."""
        self._grace = grace
        self._prefix = prefix
        self._count = 0
        self._unsent = 0
        self._hurries = False
        self._room = asyncio.Event()
        self._away: asyncio.TimerHandle | None = None

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._count - 1

    def go_on_after(self, number: int) -> None:
        """Number the events from here on: those before were another service's."""
        self._count = number + 1

    def prime(self, milliseconds: int) -> None:
        """Add an event without a message: a client that has it can resume, after this time."""
        self._add((b"retry: %d\r\ndata: " % milliseconds,))

    def part(self, milliseconds: int) -> None:
        """The service ends: the client is told to come back after this time, and its response ends at once."""
        if not self.parted and not self.ended:
            self.prime(milliseconds)
            self.parted = True

    async def put(self, message: Pieces) -> None:
        """Add an event, and wait until the client has taken most of what was added."""
        self._add(message)
        while self._unsent > (MAX_UNSENT_WHEN_SHORT if self._is_short else MAX_UNSENT) and not self._hurries:
            self._room.clear()
            await self._room.wait()

    def hurry(self) -> None:
        """The call is done: what is still to be added waits for nobody."""
        self._hurries = True
        self._room.set()

    def beat(self) -> None:
        """A comment line, for whoever reads just now."""
        self.beats += 1
        self.news.set()

    def finish(self, message: Pieces) -> None:
        """Add the answer, the last event."""
        self._add(message)
        self.ended, self.kept_size = time.monotonic(), self.size + OBJECT_SIZE
        self.hurry()
        self._stop_clock()

    def _add(self, message: Pieces) -> None:
        pieces = (f"id: {self._prefix}{self._count}\r\n".encode(), *message, b"\r\n\r\n")
        event = _Event(self._count, pieces, sum(map(len, pieces)))
        self._count += 1
        self.events.append(event)
        self._resize(event.size)
        self._unsent += event.size
        self.news.set()

    @contextmanager
    def reading(self, after: int) -> Iterator[EventReader]:
        """Read what comes after this event. While nobody reads, the time runs after which the work is ended."""
        self.readers += 1
        self._stop_clock()
        self.note_sent(after)
        self.news.set()
        reader = EventReader(self)
        try:
            yield reader
        finally:
            if reader.is_current and not self.ended and not self.parted:
                self._wait_for_a_reader()

    def _wait_for_a_reader(self) -> None:
        if self._grace <= 0:
            self.abandon()
        else:
            self._away = asyncio.get_running_loop().call_later(self._grace, self.abandon)

    def _stop_clock(self) -> None:
        if self._away is not None:
            self._away.cancel()
            self._away = None

    def close(self) -> None:
        """End the response that reads, if there is one."""
        self.readers += 1
        self._stop_clock()
        self.news.set()

    def note_sent(self, number: int) -> None:
        """The client was sent this event, and all before it: the oldest need not be kept."""
        self.sent = number
        self._unsent = sum(event.size for event in self.events if event.number > number)
        most = 0 if self._is_short else MAX_SENT
        while self.size - self._unsent > most and self.events[0].number < min(number, self.last):
            self._resize(-self.events.popleft().size)
        if self._unsent <= MAX_UNSENT:
            self._room.set()

    @property
    def was_delivered(self) -> bool:
        """Whether the answer was sent to its end. It may have been lost on its way."""
        return bool(self.ended) and self.sent >= self.last

    @property
    def _is_short(self) -> bool:
        return self.live is not None and self.live.are_short(self.chat.tenant)

    def _resize(self, by: int) -> None:
        self.size += by
        if self.live is not None:
            self.live.change(self.chat.tenant, by)


class EventReader:
    """One response that gets the events of a stream, until another one takes its place."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._number = stream.readers
        self._beats = stream.beats
        self._given = stream.sent

    @property
    def is_current(self) -> bool:
        return self._stream.readers == self._number

    @property
    def is_complete(self) -> bool:
        """Whether nothing comes after what `next` has given."""
        return bool(self._stream.ended) and self._given >= self._stream.last

    async def next(self) -> list[bytes]:
        """What is to be sent next, when what it gave before was sent; empty when there is no more."""
        stream = self._stream
        if self.is_current and self._given > stream.sent:
            stream.note_sent(self._given)
        while self.is_current:
            stream.news.clear()
            found = [event for event in stream.events if event.number > self._given]
            if found:
                self._given, self._beats = found[-1].number, stream.beats
                return [piece for event in found for piece in event.pieces]
            if stream.ended or stream.parted:
                return []
            if stream.beats > self._beats:
                self._beats = stream.beats
                return [_COMMENT]
            await stream.news.wait()
        stream.news.set()  # it may be the next reader's
        return []


@dataclass(slots=True)
class _Shelf:
    """Finished answers, the oldest first."""

    max_size: int
    max_count: int
    streams: OrderedDict[str, EventStream] = field(default_factory=OrderedDict)
    size: int = 0

    def add(self, stream: EventStream) -> None:
        self.streams[stream.id] = stream
        self.size += stream.kept_size

    def remove(self, stream: EventStream) -> None:
        del self.streams[stream.id]
        self.size -= stream.kept_size

    @property
    def too_much(self) -> EventStream | None:
        """The one that must go, if there is more than may be."""
        is_full = self.size > self.max_size or len(self.streams) > self.max_count
        return next(iter(self.streams.values())) if is_full else None


class EventStreams:
    """All streams of the service: those under way, and finished ones for a while."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._live: dict[str, EventStream] = {}
        self._counts: Counter[str] = Counter()
        self._bytes = LiveBytes()
        self._all = _Shelf(MAX_ENDED, MAX_COUNT)
        self._tenants: dict[str, _Shelf] = {}
        self._chats: dict[str, _Shelf] = {}
        self._delivered: deque[tuple[float, ref[EventStream]]] = deque()
        """Those that need not be kept, and until when they are, unless they have made room before that."""
        self._sweep: asyncio.TimerHandle | None = None

    def has_room(self, chat: Chat) -> bool:
        return (
            len(self._live) < MAX_STREAMS
            and self._counts[chat.tenant] < MAX_STREAMS_OF_A_TENANT
            and self._counts[chat.digest] < MAX_STREAMS_OF_A_CHAT
            and not self._bytes.are_short(chat.tenant)
        )

    def add(self, stream: EventStream) -> None:
        """One that is under way. No other of the same id is."""
        self._live[stream.id] = stream
        stream.live = self._bytes
        self._bytes.change(stream.chat.tenant, stream.size + OBJECT_SIZE)
        self._counts.update((stream.chat.tenant, stream.chat.digest))

    def find(self, id: str) -> EventStream | None:
        return self._live.get(id) or self._all.streams.get(id)

    def of_session(self, tenant: str, session: str) -> list[EventStream]:
        """Those under way."""
        return [each for each in self._live.values() if each.chat.tenant == tenant and each.session == session]

    def keep(self, stream: EventStream) -> None:
        """The answer is complete: keep it for a while."""
        self._drop_live(stream)
        shelves = (self._all, *self._shelves_of(stream.chat))
        for shelf in shelves:
            shelf.add(stream)
        for shelf in shelves:
            while (oldest := shelf.too_much) is not None:
                self._forget(oldest)
        self._forget_old()

    def forget(self, id: str) -> None:
        """A finished one makes place for another of the same id."""
        if (stream := self._all.streams.get(id)) is not None:
            self._forget(stream)

    def forget_soon(self, stream: EventStream) -> None:
        """A finished one that was delivered need not be kept for long."""
        if stream.was_delivered:
            self._delivered.append((time.monotonic() + DELIVERED_SECONDS, ref(stream)))
            self._forget_old()

    def drop(self, stream: EventStream) -> None:
        """The work ended without an answer."""
        self._drop_live(stream)
        stream.close()

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _shelves_of(self, chat: Chat) -> tuple[_Shelf, _Shelf]:
        """Those of the tenant and of the chat."""
        return (
            self._tenants.setdefault(chat.tenant, _Shelf(MAX_ENDED_OF_A_TENANT, MAX_COUNT)),
            self._chats.setdefault(chat.digest, _Shelf(MAX_ENDED_OF_A_CHAT, MAX_COUNT_OF_A_CHAT)),
        )

    def _drop_live(self, stream: EventStream) -> None:
        if self._live.get(stream.id) is not stream:
            return
        del self._live[stream.id]
        stream.live = None
        self._bytes.change(stream.chat.tenant, -stream.size - OBJECT_SIZE)
        for name in (stream.chat.tenant, stream.chat.digest):
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]

    def _forget(self, stream: EventStream) -> None:
        self._all.remove(stream)
        for shelves, name in ((self._tenants, stream.chat.tenant), (self._chats, stream.chat.digest)):
            shelves[name].remove(stream)
            if not shelves[name].streams:
                del shelves[name]

    def _forget_old(self) -> None:
        """Forget what is older than it need be, and look again as long as there is more."""
        now = time.monotonic()
        while self._delivered and self._delivered[0][0] <= now:
            stream = self._delivered.popleft()[1]()
            if stream is not None and self._all.streams.get(stream.id) is stream:
                self._forget(stream)
        while (
            self._all.streams and (oldest := next(iter(self._all.streams.values()))).ended <= now - self._keep_seconds
        ):
            self._forget(oldest)
        if self._sweep is None and (self._all.streams or self._delivered):
            self._sweep = asyncio.get_running_loop().call_later(min(_SWEEP_SECONDS, DELIVERED_SECONDS), self._look)

    def _look(self) -> None:
        self._sweep = None
        self._forget_old()
