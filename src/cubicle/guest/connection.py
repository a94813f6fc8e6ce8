"""One connection of the host: frames in, frames out, channels, credit.

A channel is whatever answers an OPEN frame. It is told about data, the end of data, credit and cancellation; it sends
through the methods of `Channel`. A channel that has no credit, or whose link is congested, must not send data: it
returns and is called at `ready()` when it may go on.
"""

from __future__ import annotations

import array
import mmap
import socket
import struct
from collections import deque
from collections.abc import Callable

from . import operations, wire
from .loop import READ, WRITE, Loop, Timer, tell
from .messages import BadMessage, Message, Request
from .wire import ErrorCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

_RECEIVE = wire.WINDOW + 64 * 1024
"""A whole window at once: the fewer frames lie across two reads, the less is moved to the front of the buffer."""
_CREDIT = wire.WINDOW // 4
_MOMENT = 0.005
_MAX_HELD = 64
_MAX_QUEUED = 4 * 1024 * 1024
_PEER = struct.Struct("3i")  # process, user, group
_TCP_CLOSE = b"\x07"
_NOTHING = operations.Nothing()


class OperationRefused(Exception):
    """The request cannot be done; code and message go to the host."""

    def __init__(
        self, code: ErrorCode, message: str, details: operations.FailureDetails = operations.Failure.details
    ) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


class GuestChannel:
    """One exchange on a link. Subclasses do the work."""

    REQUEST: ClassVar[type[Request[Message, Message]]]
    """What opens it, if the host does."""

    def __init__(self, link: GuestConnection, number: int) -> None:
        self.link = link
        self.number = number
        self.window = wire.WINDOW
        self.promised = wire.WINDOW
        self._owed = 0
        self.closed = False

    def begin(self, request: Any) -> None:
        """The request of the OPEN frame, of the type REQUEST; raise Refused to say no."""

    def on_data(self, stream: int, payload: memoryview) -> None:
        """The payload is the link's own buffer: what is kept after the return must be copied."""
        self.give(len(payload))

    def on_eof(self, stream: int) -> None:
        pass

    def ready(self) -> None:
        """Data may be sent (again)."""

    def on_cancel(self) -> None:
        """The host does not want the answer any more."""

    def on_lost(self) -> None:
        """The link is gone; the default is the same as a cancellation."""
        self.on_cancel()

    @property
    def may_send(self) -> int:
        """How many data bytes may be sent right now."""
        if self.closed or self.link.congested:
            return 0
        return min(self.window, wire.MAX_PAYLOAD)

    def data(self, payload: bytes, stream: int = 0) -> None:
        self.window -= len(payload)
        self.link.send(wire.HEADER.pack(len(payload), self.number, wire.DATA, stream, 0), payload)

    def give(self, amount: int) -> None:
        """The host may send so many more bytes: called as they are consumed, and told when it is worth a frame."""
        self.promised += amount
        self._owed += amount
        if self._owed >= _CREDIT and not self.closed:
            self.link.send(wire.credit(self.number, self._owed))
            self._owed = 0

    def eof(self, stream: int = 0) -> None:
        if not self.closed:
            self.link.send(wire.frame(self.number, wire.EOF, b"", stream))

    def event(self, message: Message, *, hurries: bool = True) -> None:
        """Without hurry, what comes next in the same moment is sent with it."""
        if not self.closed:
            send = self.link.send if hurries else self.link.send_soon
            send(wire.frame(self.number, wire.EVENT, message.encode()))

    def end(self, answer: Message = _NOTHING) -> None:
        frame = wire.frame(self.number, wire.END, answer.encode())
        if self.link.forget(self):
            self.link.send(frame)

    def fail(self, no: OperationRefused) -> None:
        if self.link.forget(self):
            self.link.send(_failure(self.number, no))


class GuestConnection:
    """The host's end of one connection, as the guest sees it."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        find_channel: Callable[[str], type[GuestChannel] | None],
        on_close: Callable[[GuestConnection], None],
        epoch: int = 0,
    ) -> None:
        sock.setblocking(False)
        # Room for a whole window halves the cost of a byte: fewer turns between this side and the other.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wire.WINDOW)
        self._loop = loop
        self._sock = sock
        self._find_channel = find_channel
        self._on_close = on_close
        self.epoch = epoch
        """Of whom a handshake let in: which of the sandbox's owners, counted from 1."""
        # Not a bytearray: that takes all of it from the start, and most connections never fill it.
        self._buffer = memoryview(mmap.mmap(-1, _RECEIVE))
        self._filled = 0
        self._out: deque[memoryview] = deque()
        self._queued = 0
        self._held: list[bytes] = []
        self._due: Timer | None = None
        self._channels: dict[int, GuestChannel] = {}
        self._next = 2
        self.open = True
        loop.watch(sock.fileno(), READ, self._on_events)

    @property
    def congested(self) -> bool:
        """Something waits for the socket; whoever makes data should wait too."""
        return bool(self._out) or not self.open

    @property
    def outside(self) -> bool:
        """Whether the other end is the host itself: no process of this sandbox, such as a relay, stands between, and no
        network, which carries no descriptors."""
        if self._sock.family != socket.AF_UNIX:
            return False
        peer = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return bool(_PEER.unpack(peer)[0] == 0)

    @property
    def counted(self) -> bool:
        """Whether the kernel has it among the TCP sockets that it counts: not one that the other end has reset."""
        try:
            state = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:  # no TCP, or not this kernel's
            return False
        return state not in (b"", _TCP_CLOSE)

    def adopt(self, make: Callable[[GuestConnection, int], GuestChannel]) -> GuestChannel:
        """A channel that the guest opens."""
        number = self._next
        self._next += 2
        channel = make(self, number)
        self._channels[number] = channel
        return channel

    def forget(self, channel: GuestChannel) -> bool:
        """Close the channel; False if it was closed before."""
        if channel.closed:
            return False
        channel.closed = True
        self._channels.pop(channel.number, None)
        return True

    def send_soon(self, frame: bytes) -> None:
        """With the next frame, or in a moment."""
        self._held.append(frame)
        if len(self._held) >= _MAX_HELD:
            self.send()
        elif self._due is None:
            self._due = self._loop.later(_MOMENT, self.send)

    def send(self, *parts: bytes) -> None:
        if self._held:
            parts, self._held = (*self._held, *parts), []
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self.open or not parts:
            return
        if not self._out:
            try:
                sent = self._sock.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self.close()
                return
        else:
            sent = 0
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                self._out.append(memoryview(part)[sent:])
                self._queued += len(part) - sent
                sent = 0
        if self._out:
            self._watch()

    def hand(self, frame: bytes, descriptor: int) -> None:
        """Send a frame with a descriptor: from then on it is the host's as well. OSError if it cannot be sent now."""
        self.send()
        if self._out:
            raise BlockingIOError(11, "the host does not read")
        self._sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])

    def close(self) -> None:
        """Drop the connection and tell every channel."""
        if not self.open:
            return
        self.open = False
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._out.clear()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.closed = True
            channel.on_lost()
        self._on_close(self)

    def _watch(self) -> None:
        events = WRITE if self._out else 0
        if self._queued < _MAX_QUEUED:
            events |= READ
        self._loop.watch(self._sock.fileno(), events, self._on_events)

    def _on_events(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if self.open and events & READ:
            self._receive()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out[0])
                self._queued -= sent
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                else:
                    self._out.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
            return
        self._watch()
        if not self._out:
            for channel in list(self._channels.values()):
                if self._out:
                    return
                if channel.window > 0 and not channel.closed:
                    channel.ready()

    def _receive(self) -> None:
        try:
            got = self._sock.recv_into(self._buffer[self._filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = 0
        if not got:
            self.close()
            return
        self._filled += got
        try:
            self._parse()
        except wire.WireError:
            self.close()
        except Exception:  # noqa: BLE001
            tell()
            self.close()  # the host finds that out at once, and comes again

    def _parse(self) -> None:
        start = 0
        while self.open and self._filled - start >= wire.HEADER.size:
            length, number, kind, stream = wire.read_header(self._buffer, start)
            end = start + wire.HEADER.size + length
            if end > self._filled:
                break
            payload = self._buffer[start + wire.HEADER.size : end]
            start = end
            self._dispatch(number, kind, stream, payload)
        rest = self._filled - start
        if start and rest:
            self._buffer[:rest] = self._buffer[start : self._filled]
        self._filled = rest

    def _dispatch(self, number: int, kind: int, stream: int, payload: memoryview) -> None:
        if kind == wire.OPEN:
            self._open(number, wire.read_message(payload))
            return
        channel = self._channels.get(number)
        if channel is None:
            return  # it ended while this frame was under way
        try:
            if kind == wire.DATA:
                channel.promised -= len(payload)
                if channel.promised < 0:
                    raise wire.WireError("more data than was promised room for")
                channel.on_data(stream, payload)
            elif kind == wire.CREDIT:
                channel.window += wire.read_credit(payload)
                if not self.congested:
                    channel.ready()
            elif kind == wire.EOF:
                channel.on_eof(stream)
            elif kind in (wire.CANCEL, wire.END, wire.FAIL):
                self.forget(channel)
                channel.on_cancel()
        except OperationRefused as no:
            channel.fail(no)
        except OSError as error:
            channel.fail(refusal(error))

    def _open(self, number: int, fields: dict[str, object]) -> None:
        make = self._find_channel(str(fields.get("op")))
        if number % 2 == 0 or number in self._channels or len(self._channels) >= wire.MAX_CHANNELS:
            raise wire.WireError("a channel that cannot be opened")
        if make is None:
            self.send(_failure(number, OperationRefused(ErrorCode.BAD_REQUEST, "unknown operation")))
            return
        channel = make(self, number)
        self._channels[number] = channel
        try:
            channel.begin(make.REQUEST.decode(fields))
        except OperationRefused as no:
            channel.fail(no)
        except OSError as error:
            channel.fail(refusal(error))
        except BadMessage as error:
            channel.fail(OperationRefused(ErrorCode.BAD_REQUEST, str(error)))
        except ValueError as error:  # of the standard library, say for a NUL in a path
            channel.fail(OperationRefused(ErrorCode.BAD_REQUEST, "%s: %s" % (type(error).__name__, error)))


_CODES = {
    2: ErrorCode.NOT_FOUND,
    1: ErrorCode.PERMISSION,
    13: ErrorCode.PERMISSION,
    17: ErrorCode.EXISTS,
    20: ErrorCode.NOT_DIRECTORY,
    21: ErrorCode.IS_DIRECTORY,
    28: ErrorCode.NO_SPACE,
    30: ErrorCode.READ_ONLY,
    36: ErrorCode.BAD_NAME,
    40: ErrorCode.BAD_NAME,
    111: ErrorCode.REFUSED,
    122: ErrorCode.NO_SPACE,
}


def refusal(error: OSError) -> OperationRefused:
    """An error of the operating system, as the host is told it."""
    return OperationRefused(_CODES.get(error.errno or 0, ErrorCode.IO), error.strerror or str(error))


def _failure(number: int, no: OperationRefused) -> bytes:
    told = operations.Failure(error=no.code, message=str(no)[:2000], details=no.details)
    return wire.frame(number, wire.FAIL, told.encode())
