"""Ports of the sandbox's own loopback: dial one for the host, or listen on one and pass each caller to the host."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable

from . import operations, wire
from .connection import GuestChannel, GuestConnection, refusal
from .listening import own_ports
from .loop import READ, WRITE, Loop

_MAX_CALLERS = 512
_SO_ORIGINAL_DST = 80
_MAX_DATAGRAM = 4096
_PROBE_SECONDS = 5


class PortChannel(GuestChannel):
    """A channel that has to do with a port."""

    loop: Loop


class PortRelay(PortChannel):
    """Bytes both ways between one socket and the channel, with the channel's credit as back-pressure."""

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._sock: socket.socket | None = None
        self._out: deque[bytes] = deque()
        self._out_ends = False
        self._in_ended = False
        self._out_ended = False

    def connect(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._watch()

    def _watch(self) -> None:
        if self._sock is None:
            return
        events = 0
        if not self._in_ended and self.may_send:
            events |= READ
        if self._out or (self._out_ends and not self._out_ended):
            events |= WRITE
        if events:
            self.loop.watch(self._sock.fileno(), events, self._on_events)
        else:
            self.loop.unwatch(self._sock.fileno())

    def ready(self) -> None:
        self._watch()

    def on_data(self, stream: int, payload: memoryview) -> None:
        self._out.append(bytes(payload))
        self._write()

    def on_eof(self, stream: int) -> None:
        self._out_ends = True
        self._write()

    def on_cancel(self) -> None:
        self._drop()

    def _on_events(self, events: int) -> None:
        if events & WRITE:
            self._write()
        if self._sock is not None and events & READ and not self._in_ended:
            self._read()

    def _read(self) -> None:
        room = self.may_send
        if self._sock is None or not room:
            self._watch()
            return
        try:
            chunk = self._sock.recv(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broken(error)
            return
        if chunk:
            self.data(chunk)
            if not self.may_send:
                self._watch()
            return
        self._in_ended = True
        self.eof()
        self._finish()

    def _write(self) -> None:
        if self._sock is None:
            return
        try:
            while self._out:
                sent = self._sock.send(self._out[0])
                self.give(sent)
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                else:
                    self._out.popleft()
            if self._out_ends and not self._out_ended:
                self._out_ended = True
                self._sock.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._broken(error)
            return
        self._finish()

    def _finish(self) -> None:
        if self._in_ended and self._out_ended:
            self._drop()
            self.end()
        else:
            self._watch()

    def _broken(self, error: OSError) -> None:
        self._drop()
        self.fail(refusal(error))

    def _drop(self) -> None:
        if self._sock is not None:
            self.loop.unwatch(self._sock.fileno())
            self._sock.close()
            self._sock = None
        self._out.clear()


class Dial(PortRelay):
    """Connect to a port of the sandbox; `connected` is said before the first byte."""

    REQUEST = operations.Dial

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._addresses: list[tuple[int, str]] = []
        self._port = 0

    def begin(self, request: operations.Dial) -> None:
        self._port = request.port
        self._addresses = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        self._next(OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))

    def _next(self, error: OSError) -> None:
        while self._addresses:
            family, address = self._addresses.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue
            sock.setblocking(False)
            _prepare(sock)
            problem = sock.connect_ex((address, self._port))
            if problem in (0, errno.EINPROGRESS):
                self._sock = sock
                self.loop.watch(sock.fileno(), WRITE, self._connected)
                return
            sock.close()
        self.fail(refusal(error))

    def _watch(self) -> None:
        if not self._port:
            super()._watch()

    def _connected(self, events: int) -> None:
        sock = self._sock
        if sock is None:
            return
        problem = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.loop.unwatch(sock.fileno())
        if problem:
            self._sock = None
            sock.close()
            self._next(OSError(problem, os.strerror(problem)))
            return
        self._port = 0
        self.event(operations.Connected(connected=True))
        self._write()

    def _write(self) -> None:
        if not self._port:
            super()._write()


class PortCaller(PortRelay):
    """One connection that came in on a port that the guest listens on."""


class Datagram(PortChannel):
    """One datagram and its answer, told to the host as a caller over TCP would (DNS): a length before each."""

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._heard = b""
        self._reply: Callable[[bytes], object] = len

    def ask(self, question: bytes, reply: Callable[[bytes], object]) -> None:
        self._reply = reply
        self.data(len(question).to_bytes(2, "big") + question)
        self.eof()

    def on_data(self, stream: int, payload: memoryview) -> None:
        self.give(len(payload))
        self._heard = (self._heard + bytes(payload))[: _MAX_DATAGRAM + 2]
        if len(self._heard) < 2 or len(self._heard) < 2 + int.from_bytes(self._heard[:2], "big"):
            return
        try:
            self._reply(self._heard[2:])
        except OSError:
            pass  # whoever asked is gone
        self.end()

    def on_eof(self, stream: int) -> None:
        self.end()


class Listen(PortChannel):
    """Listen on a port of the sandbox's loopback until the channel is cancelled."""

    REQUEST = operations.Listen

    def __init__(self, link: GuestConnection, number: int) -> None:
        super().__init__(link, number)
        self._server: socket.socket | None = None
        self._datagrams: socket.socket | None = None
        self._callers: list[PortChannel] = []
        self._origin = False
        self._port = 0

    def begin(self, request: operations.Listen) -> None:
        self._origin = request.origin
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", request.port))
            server.listen(256)
        except OSError:
            server.close()
            raise
        server.setblocking(False)
        self._server = server
        self._port = server.getsockname()[1]
        own_ports.add(self._port)
        self.loop.watch(server.fileno(), READ, self._accept)
        if request.datagrams:
            self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                self._datagrams.bind(server.getsockname())
            except OSError:
                self.on_cancel()  # the one port without the other would only stand in the way of the next try
                raise
            self._datagrams.setblocking(False)
            self.loop.watch(self._datagrams.fileno(), READ, self._receive)
        self.event(operations.Listening(listening=self._port))

    def _accept(self, events: int) -> None:
        if self._server is None:
            return
        try:
            sock, _ = self._server.accept()
        except OSError:
            return
        if not self._has_room():
            sock.close()
            return
        _prepare(sock)
        kind = type("BoundCaller", (PortCaller,), {"loop": self.loop})
        caller = self.link.adopt(kind)
        assert isinstance(caller, PortCaller)
        self._announce(caller, _origin(sock) if self._origin else None)
        caller.connect(sock)

    def _receive(self, events: int) -> None:
        sock = self._datagrams
        if sock is None:
            return
        try:
            question, peer = sock.recvfrom(_MAX_DATAGRAM)
        except OSError:
            return
        if question and self._has_room():
            datagram = self.link.adopt(Datagram)
            assert isinstance(datagram, Datagram)
            self._announce(datagram)
            datagram.ask(question, lambda answer: sock.sendto(answer, peer))

    def _has_room(self) -> bool:
        self._callers = [caller for caller in self._callers if not caller.closed]
        return len(self._callers) < _MAX_CALLERS

    def _announce(self, caller: PortChannel, to: tuple[str, int] | None = None) -> None:
        self._callers.append(caller)
        announced = operations.Accepted(listener=self.number, to=to)
        self.link.send(wire.frame(caller.number, wire.OPEN, announced.encode()))

    def on_cancel(self) -> None:
        for sock in (self._server, self._datagrams):
            if sock is not None:
                self.loop.unwatch(sock.fileno())
                sock.close()
        self._server = self._datagrams = None
        own_ports.discard(self._port)
        self._port = 0


def _prepare(sock: socket.socket) -> None:
    """Send small parts at once, and look after a connection in which nothing moves.

    gVisor sometimes fails to tell a sender that there is room again (google/gvisor#10243): both sides would wait for
    ever. What answers a probe says how much room there is.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)


def _origin(sock: socket.socket) -> tuple[str, int] | None:
    """Where a caller that was redirected here wanted to go, if it was."""
    try:
        raw = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    except OSError:
        return None
    return socket.inet_ntoa(raw[4:8]), int.from_bytes(raw[2:4], "big")


CHANNELS: list[type[PortChannel]] = [Dial, Listen]
