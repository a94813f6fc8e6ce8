"""The control channel between the service and its network worker: one JSON object a packet, with descriptors."""

from __future__ import annotations

import array
import asyncio
import json
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cubicle.core.untrusted_json import BadJson, parse_object
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

MAX_MESSAGE = 64 * 1024
_MAX_VALUES = 4000
_MAX_QUEUED = 4 * 1024 * 1024
_MAX_PENDING = 2000
"""Questions of the other side that are being answered."""
_MAX_DESCRIPTORS = 4
_MAX_CONCURRENT = 64
_ROOM = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)

Fields = dict[str, Any]
Handler = Callable[[Fields, list[socket.socket]], Awaitable[Fields] | None]
"""Answers a question, or takes a notice at once. The sockets are its to close."""


class ChannelLost(OSError):
    """The other side is gone, does not answer in time or cannot answer."""


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, neither of which blocks."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


class ControlChannel:
    """One end. A notice is handled in the order in which it was sent, in the very call that brings it."""

    def __init__(self, sock: socket.socket, handlers: Mapping[str, Handler]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._handlers = handlers
        self._queue: deque[tuple[bytes, Sequence[socket.socket]]] = deque()
        self._queued = 0
        self._next = 1
        self._asked: dict[int, asyncio.Future[Fields]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()
        self._loop.add_reader(sock.fileno(), self._on_readable)

    @property
    def congested(self) -> bool:
        """Whether the other side is so slow that a notice which can be left out should be."""
        return self._queued > _MAX_QUEUED // 4

    def notify(self, op: str, **fields: Any) -> bool:
        """Say something that needs no answer; False when it could not be sent."""
        return self._send({"op": op, **fields})

    async def ask(
        self, op: str, *, limit: float | None, pass_sockets: Sequence[socket.socket] = (), **fields: Any
    ) -> Fields:
        """Ask and wait for the answer; the sockets are closed here. Raises ChannelLost."""
        number, self._next = self._next, self._next + 1
        future: asyncio.Future[Fields] = self._loop.create_future()
        self._asked[number] = future
        try:
            if not self._send({"op": op, "ask": number, **fields}, pass_sockets):
                raise ChannelLost("The other side takes no more messages.")
            async with asyncio.timeout(limit):
                answer = await future
        except TimeoutError:
            raise ChannelLost(f"No answer to {op!r} within {limit:g} s.") from None
        finally:
            self._asked.pop(number, None)
        if "failed" in answer:
            raise ChannelLost(str(answer["failed"])[:500])
        return answer

    def close(self) -> None:
        """Hang up."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        while self._queue:
            _close(self._queue.popleft()[1])
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ChannelLost("The other side is gone."))
        for task in list(self._answering):
            task.cancel()

    def _send(self, fields: Fields, pass_sockets: Sequence[socket.socket] = ()) -> bool:
        packet = json.dumps(fields, separators=(",", ":")).encode("utf-8", "replace")
        if self.closed.is_set() or len(packet) > MAX_MESSAGE or self._queued + len(packet) > _MAX_QUEUED:
            _close(pass_sockets)
            return False
        self._queue.append((packet, pass_sockets))
        self._queued += len(packet)
        if len(self._queue) == 1:
            self._flush()
        return True

    def _flush(self) -> None:
        while self._queue:
            packet, pass_sockets = self._queue[0]
            numbers = array.array("i", [sock.fileno() for sock in pass_sockets])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if numbers else []
            try:
                self._sock.sendmsg([packet], ancillary, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError:
                self.close()
                return
            self._queue.popleft()
            self._queued -= len(packet)
            _close(pass_sockets)
        self._loop.remove_writer(self._sock.fileno())

    def _on_readable(self) -> None:
        for _ in range(_MAX_CONCURRENT):
            if self.closed.is_set():
                return
            flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            try:
                packet, ancillary, told, _ = self._sock.recvmsg(MAX_MESSAGE, _ROOM, flags)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            sockets = _sockets(ancillary)
            try:
                if not packet or told & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise BadJson("a packet that is cut off")
                self._take(parse_object(packet, max_size=MAX_MESSAGE, max_values=_MAX_VALUES), sockets)
            except BadJson as error:
                if packet:
                    log.error("the control channel is closed: %s", error)
                _close(sockets)
                self.close()

    def _take(self, fields: Fields, sockets: list[socket.socket]) -> None:
        if (answered := fields.get("answer")) is not None:
            future = self._asked.get(answered) if isinstance(answered, int) else None
            if future is not None and not future.done():
                future.set_result(fields)
            _close(sockets)
            return
        handler = self._handlers.get(str(fields.get("op")))
        if handler is None or len(self._answering) >= _MAX_PENDING:
            _close(sockets)
            raise BadJson("a message that nobody here expects")
        try:
            answer = handler(fields, sockets)
        except (KeyError, TypeError, ValueError) as error:
            raise BadJson(f"a message {fields.get('op')!r} of another form: {error}") from None
        if answer is not None:
            task = start_task(self._answer(fields.get("ask"), answer), name="answer of the control channel")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, number: object, work: Awaitable[Fields]) -> None:
        try:
            answer = await work
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("a message of the control channel could not be handled")
            answer = {"failed": str(error)[:500] or type(error).__name__}
        if number is not None and not self._send({"answer": number, **answer}):
            self._send({"answer": number, "failed": "The answer is too long."})


def _sockets(ancillary: list[tuple[int, int, bytes]]) -> list[socket.socket]:
    numbers = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    found = []
    for number in numbers:
        try:
            found.append(socket.socket(fileno=number))
        except OSError:  # it is no socket
            os.close(number)
    return found


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        with suppress(OSError):
            sock.close()
