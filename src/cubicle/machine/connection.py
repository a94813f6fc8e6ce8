"""The host's end of a guest connection: frames, channels, credit.

The guest is not trusted: every frame is bounded and checked, a channel never holds more than its window, and a guest
that breaks the rules loses the line, with `Gone` for everybody who waits.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from cubicle.core.untrusted_json import BadJson, parse_object
from cubicle.guest import operations, wire
from cubicle.guest.messages import BadMessage, Message, Request
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import Gone, MachineError, SandboxError, refusal
from cubicle.machine.items import LARGE, Data, End, Eof, Event
from cubicle.machine.liveness import Liveness

_ROOM = wire.MAX_PAYLOAD + 256 * 1024
_MAX_ITEMS = 4096
_MAX_UNREAD = 8 * 1024 * 1024
_MAX_UNREAD_TOTAL = 64 * 1024 * 1024
"""Of all channels of one line together: each may have a window full."""
_MAX_EVENTS = 16
"""Of one channel: an operation has one or two."""
_MAX_MESSAGE = 128 * 1024
_MAX_MESSAGE_VALUES = 10_000
_MAX_INBOUND = 512
"""Callers from inside the sandbox that are served at once."""
_MAX_FRAME_RATE = 20_000
"""Frames a second, after as many at once: a guest that sends crumbs waits, and takes no one else's time."""
_REST_SECONDS = 0.05
_FIRST_SILENCE = 1.0
_SILENCE = 10.0
"""How long a channel waits for its first item, and for each later one, before it makes sure that the guest is there."""
_SO_SNDBUFFORCE = 32
_E = TypeVar("_E", bound=Message)
_A = TypeVar("_A", bound=Message)


class Channel(Generic[_E, _A]):
    """One exchange with the guest."""

    def __init__(self, line: GuestLink, number: int, request: Request[_E, _A]) -> None:
        self._line = line
        self.number = number
        self.request = request
        """What opened it: ours, or the guest's."""
        self._items: deque[Data | Event[_E] | Eof | End[_A] | SandboxError] = deque()
        self._waiter: asyncio.Future[bool] | None = None
        self._unread = self._consumed = self._events = 0
        self._window = wire.WINDOW
        self._room: asyncio.Future[None] | None = None
        self.over = False
        self.checks = True
        """Whether the guest is asked if it is there when nothing comes."""
        self._silence = _FIRST_SILENCE

    async def get(self) -> Data | Event[_E] | Eof | End[_A]:
        """The next thing the guest says on this channel; raises what ended it badly."""
        while not self._items:
            if self.over:
                raise Gone("The exchange with the sandbox is over.")
            if not await self._comes():
                await self._line.check()
                self._silence = _SILENCE
        self._silence = _SILENCE
        item = self._items[0]
        if isinstance(item, SandboxError):
            raise item
        self._items.popleft()
        if isinstance(item, Data):
            self._take(len(item.bytes))
        elif isinstance(item, End):
            self._items.append(Gone("The exchange with the sandbox is over."))
        return item

    async def _comes(self) -> bool:
        """Wait for an item; False when it takes too long."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        late = loop.call_later(self._silence, _settle, waiter, False) if self.checks else None
        try:
            return await waiter
        finally:
            self._waiter = None
            if late is not None:
                late.cancel()

    def _take(self, amount: int) -> None:
        self._unread -= amount
        self._line.unread -= amount
        self._consumed += amount
        if self._consumed >= wire.WINDOW // 4 and not self.over:
            self._line.write(wire.credit(self.number, self._consumed))
            self._consumed = 0

    async def event(self) -> _E:
        """What the guest says before anything else."""
        if not isinstance(item := await self.get(), Event):
            raise MachineError(ErrorCode.IO, "The sandbox did not say that it began.")
        return item.message

    async def answer(self) -> _A:
        """The final answer, passing over everything before it."""
        while not isinstance(item := await self.get(), End):
            pass
        return item.answer

    async def send(self, data: bytes | memoryview, stream: int = 0) -> None:
        """Send data, waiting for the guest to have room for it."""
        view = memoryview(data)
        while view:
            while (self._window <= 0 or not self._line.writable) and not self.over:
                await self._wait_for_room()
            if self.over:
                return
            part = view[: min(self._window, wire.MAX_PAYLOAD)]
            self.post(part, stream)
            view = view[len(part) :]

    def post(self, data: bytes | memoryview, stream: int = 0) -> bool:
        """Send one frame without waiting; False, and nothing is sent, when there is no room for it."""
        if self.over or not self._line.writable or len(data) > min(self._window, wire.MAX_PAYLOAD):
            return False
        self._window -= len(data)
        self._line.write(wire.HEADER.pack(len(data), self.number, wire.DATA, stream, 0), data)
        return True

    async def _wait_for_room(self) -> None:
        self._room = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_SILENCE):
                await self._room
        except TimeoutError:
            await self._line.check()
        finally:
            self._room = None

    def eof(self, stream: int = 0) -> None:
        if not self.over:
            self._line.write(wire.frame(self.number, wire.EOF, b"", stream))

    def cancel(self) -> None:
        """Tell the guest that nobody waits for this any more."""
        self._line.unread -= self._unread
        self._unread = 0
        self._items = deque(item for item in self._items if not isinstance(item, Data))
        if not self.over:
            self._line.write(wire.frame(self.number, wire.CANCEL))
            self._line.forget(self)
            self.put(Gone("The exchange with the sandbox was cancelled."))

    def hear(self, kind: int, payload: bytes) -> None:
        """Called by the line with a message of the guest's. One that makes no sense is this channel's problem alone."""
        fields = _message(payload)
        if kind != wire.EVENT:
            self._line.forget(self)
        item: Event[_E] | End[_A] | SandboxError
        try:
            if kind == wire.FAIL:
                item = refusal(operations.Failure.decode(fields))
            elif kind == wire.END:
                item = End(self.request.ANSWER.decode(fields))
            else:
                item = Event(self.request.EVENT.decode(fields))
        except BadMessage as error:
            item = MachineError(ErrorCode.IO, f"The sandbox answered in a way that makes no sense: {error}.")
            self._line.write(wire.frame(self.number, wire.CANCEL))
            self._line.forget(self)
        self.put(item)

    def put(self, item: Data | Event[_E] | Eof | End[_A] | SandboxError) -> None:
        """Called by the line."""
        if isinstance(item, Data):
            self._unread += len(item.bytes)
            self._line.unread += len(item.bytes)
        self._events += isinstance(item, Event)
        full = self._unread + self._consumed > wire.WINDOW or len(self._items) > _MAX_ITEMS
        if not isinstance(item, SandboxError) and (full or self._events > _MAX_EVENTS):
            raise wire.WireError("more than there was room for")
        last = self._items[-1] if self._items else None
        if isinstance(item, Data) and isinstance(last, Data) and last.takes(item):
            self._items[-1] = Data(item.stream, last.bytes + item.bytes)  # a crumb alone takes a hundred times its size
        else:
            self._items.append(item)
        if isinstance(item, End | SandboxError):
            self.over = True
            self.wake()
        if self._waiter is not None:
            _settle(self._waiter, True)

    def credit(self, amount: int) -> None:
        self._window = min(self._window + amount, wire.WINDOW)
        self.wake()

    def wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


CallerChannel = Channel[operations.Nothing, operations.Nothing]
"""Opened by the guest, for a caller from inside the sandbox."""


class GuestLink(asyncio.BufferedProtocol):
    """One connection to a guest."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        # Pages of its own, which the system has back at once: from the heap, each would leave a hole.
        self._buffer = mmap.mmap(-1, _ROOM)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._channels: dict[int, Channel[Any, Any]] = {}
        self._acceptors: dict[int, Callable[[CallerChannel], None]] = {}
        self._next = 1
        self._inbound: set[int] = set()
        self._frames = float(_MAX_FRAME_RATE)
        self._counted_at = time.monotonic()
        self._resting: asyncio.TimerHandle | None = None
        self.unread = 0
        """Bytes that wait in all channels."""
        self.offence = ""
        """Which rule the guest broke, if that is why the line was closed."""
        self.liveness = Liveness(self.answers)
        self.on_round_trip: Callable[[float], None] = lambda seconds: None
        """Told how long each answer took."""
        self._why = "The sandbox ended, or the connection to it was lost."
        self.writable = True
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def over(cls, sock: socket.socket) -> GuestLink:
        """A line over a connected socket."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wire.WINDOW)
        with suppress(PermissionError):  # root may go beyond what the system lets others ask for
            sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, wire.WINDOW)
        loop = asyncio.get_running_loop()
        connect = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
        return (await connect(cls, sock=sock))[1]

    def open(self, request: Request[_E, _A]) -> Channel[_E, _A]:
        """Begin an exchange."""
        if self.lost.done():
            raise Gone(self._why if self.liveness.given_up else "The sandbox is no longer there.")
        channel = Channel(self, self._next, request)
        opening = wire.frame(channel.number, wire.OPEN, request.encode())
        self._next += 2
        self._channels[channel.number] = channel
        self.write(opening)
        return channel

    async def ask(self, request: Request[_E, _A], *, limit: float = 60.0) -> _A:
        """One question, one answer."""
        channel = self.open(request)
        channel.checks = limit > _FIRST_SILENCE
        began = time.perf_counter()
        try:
            async with asyncio.timeout(limit):
                answer = await channel.answer()
            self.on_round_trip(time.perf_counter() - began)
            return answer
        except TimeoutError:
            await asyncio.sleep(0.05)  # where it is we who are late, the answer lies in the socket
            if channel.over:
                return await channel.answer()
            raise Gone(f"The sandbox did not answer within {limit:g} s.") from None
        finally:
            channel.cancel()

    async def check(self) -> None:
        """Make sure that somebody is there; a guest that does not answer loses the line."""
        if not await self.liveness.shown() and not self.lost.done():
            self._why = self.liveness.obituary
            self.close()
            self.lost.set_result(None)
        if self.lost.done():
            raise Gone(self._why)

    async def answers(self, limit: float) -> bool:
        """Whether the guest answers a ping."""
        try:
            await self.ask(operations.Ping(), limit=limit)
        except (Gone, MachineError):
            return False
        return True

    def accept(self, listener: Channel[Any, Any], acceptor: Callable[[CallerChannel], None]) -> None:
        """Channels that the guest opens for this listener go to the acceptor."""
        self._acceptors[listener.number] = acceptor

    def has_room(self, amount: int) -> bool:
        """Whether so many bytes more may wait to be read."""
        return self.unread + amount <= _MAX_UNREAD_TOTAL

    def may_accept(self, inbound: int) -> bool:
        """Whether one more caller from inside may come, when there are so many."""
        return inbound < _MAX_INBOUND and len(self._channels) < wire.MAX_CHANNELS

    def write(self, *parts: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def forget(self, channel: Channel[Any, Any]) -> None:
        channel.over = True
        channel.wake()
        self._channels.pop(channel.number, None)
        self._inbound.discard(channel.number)
        self._acceptors.pop(channel.number, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of another family, with the same methods
        self._transport.set_write_buffer_limits(high=1024 * 1024)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for channel in self._channels.values():
            channel.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.liveness.over = True
        if self._resting is not None:
            self._resting.cancel()
        channels, self._channels = list(self._channels.values()), {}
        if not self.lost.done():
            self.lost.set_result(None)
        for channel in channels:
            channel.over = True
            channel.put(Gone(self._why))

    def get_buffer(self, sizehint: int) -> memoryview:
        # Of a large frame only the rest, and the head of the next: what is read beyond would have to be moved.
        length = wire.HEADER.unpack_from(self._buffer)[0] if self._filled >= wire.HEADER.size else 0
        return self._view[self._filled : length + 2 * wire.HEADER.size if length > LARGE else None]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._go_on()

    def _go_on(self) -> None:
        """Take what came, as many frames as the guest may send now; the rest when it may send more."""
        self._resting = None
        now = self.liveness.heard = time.monotonic()
        self._frames = min(_MAX_FRAME_RATE, self._frames + (now - self._counted_at) * _MAX_FRAME_RATE)
        self._counted_at = now
        try:
            rests = self._parse()
        except wire.WireError as error:
            self.offence = self.offence or str(error)
            self.close()
            return
        if self._transport is None or self._transport.is_closing():
            return
        if rests:
            self._transport.pause_reading()
            self._resting = asyncio.get_running_loop().call_later(_REST_SECONDS, self._go_on_reading)

    def _go_on_reading(self) -> None:
        self._go_on()
        if self._resting is None and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _parse(self) -> bool:
        """Take the whole frames that came; True when some are left, for they are too many at once."""
        start, rests = 0, False
        while self._filled - start >= wire.HEADER.size:
            length, number, kind, stream = wire.read_header(self._view, start)
            end = start + wire.HEADER.size + length
            if end > self._filled:
                break
            if self._frames < 1:
                rests = True
                break
            self._frames -= 1
            payload = bytes(self._view[start + wire.HEADER.size : end])
            start = end
            self._dispatch(number, kind, stream, payload)
        rest = self._filled - start
        if start and rest:
            self._buffer[:rest] = self._buffer[start : self._filled]
        self._filled = rest
        return rests

    def _dispatch(self, number: int, kind: int, stream: int, payload: bytes) -> None:
        channel = self._channels.get(number)
        if channel is None:
            if kind == wire.OPEN:
                self._accept(number, _message(payload))
            return
        match kind:
            case wire.DATA if not self.has_room(len(payload)):
                # Not the guest's fault alone: whoever reads this channel is slow. It ends, the others go on.
                self.write(wire.frame(number, wire.CANCEL))
                self.forget(channel)
                channel.put(MachineError(ErrorCode.BUSY, "Too much of this sandbox's output waits to be read."))
            case wire.DATA:
                channel.put(Data(stream, payload))
            case wire.CREDIT:
                channel.credit(wire.read_credit(payload))
            case wire.EVENT | wire.END | wire.FAIL:
                channel.hear(kind, payload)
            case wire.EOF:
                channel.put(Eof(stream))
            case _:
                raise wire.WireError("a frame that the guest may not send here")

    def _accept(self, number: int, fields: dict[str, object]) -> None:
        request = operations.Accepted.decode(fields)
        acceptor = self._acceptors.get(request.listener)
        if number % 2 or acceptor is None or not self.may_accept(len(self._inbound)):
            if self._transport is not None and self._transport.get_write_buffer_size() > _MAX_UNREAD:
                raise wire.WireError("the guest asks and does not listen")
            self.write(wire.frame(number, wire.CANCEL))
            return
        self._channels[number] = channel = Channel(self, number, request)
        self._inbound.add(number)
        acceptor(channel)


def _settle(waiter: asyncio.Future[bool], came: bool) -> None:
    if not waiter.done():
        waiter.set_result(came)


def _message(payload: bytes) -> dict[str, object]:
    try:
        return parse_object(payload, max_size=_MAX_MESSAGE, max_values=_MAX_MESSAGE_VALUES)
    except BadJson as error:
        raise wire.WireError(f"a frame holds {error}") from None
