"""How uvicorn treats the service's WebSockets."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Any, cast

from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request

from cubicle.fairness.fair_queue import FairQueue, LoopShare
from cubicle.fairness.slices import feed_slices

Taker = Callable[[bytes, bool], None]
"""Takes one message: its bytes, and whether they are text."""

_OWN = "cubicle.socket"
_SLICE = 512
_MAX_FRAGMENTS = 1024
_TOO_BIG = 1009
_READ_AT_END = 1024
"""Bytes in which the client's own close frame is looked for when the application is done; the rest is dropped."""
_DROPPED_AT_END = 256 * 1024
_LAST_SECONDS = 1.0
"""For a client to read why it is closed, when its own close frame is not looked for any more."""
_quiet = logging.getLogger("cubicle.websocket.server")
_quiet.setLevel(logging.WARNING)
"""The base writes each URL into the log, with the key of a signed link."""


class ClientSocket(WebSocketsSansIOProtocol):
    """Stops reading from a client only when a message already waits to be taken.

    What came is looked at in the fair queue, for a millisecond at a time: a packet may hold ten thousand frames.

    The base stops at every message, and goes on when it is taken: two changes to what the kernel watches, each as dear
    as a read. A relay takes messages in the very call that they come with, and passes messages on in the same way.
    """

    _taker: Taker | None = None
    _fair_queue: FairQueue | None = None
    _share = LoopShare("")
    _parsing = False
    _ended = False
    """Whether the application is done with it, and it is only being closed."""
    _after_end = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._unparsed = bytearray()
        self.logger = _quiet

    @staticmethod
    def of(client: WebSocket) -> ClientSocket:
        """The connection under a client's WebSocket."""
        return cast(ClientSocket, client.scope["extensions"][_OWN])

    @staticmethod
    def under(scope: MutableMapping[str, Any]) -> ClientSocket | None:
        """The connection of a request, if it is one of ours."""
        found = scope.get("extensions", {}).get(_OWN)
        return found if isinstance(found, ClientSocket) else None

    def meter(self, queue: FairQueue, share: LoopShare) -> None:
        """From now on what the client sends is worked on in the queue."""
        self._fair_queue, self._share = queue, share

    def limit(self, size: int) -> None:
        """Refuse a message over this size (1009) before all of it has come."""
        self.conn.max_message_size = size

    def data_received(self, data: bytes) -> None:
        if self._fair_queue is None:
            super().data_received(data)
            return
        if self._ended:
            self._look_for_close(data)
            return
        self._unparsed += data
        self._parse_soon()
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()  # whoever sends more than his share is held back by TCP, not kept here

    def _look_for_close(self, data: bytes) -> None:
        """Nobody takes what comes now: it waits for no turn, or the client's leaving would wait with it."""
        self._after_end += len(data)
        if self._after_end <= _READ_AT_END:
            super().data_received(data)
            return
        if self.close_timer is not None and self.close_timer.when() > self.loop.time() + _LAST_SECONDS:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(_LAST_SECONDS, self.transport.close)
        if self._after_end > _DROPPED_AT_END and not self.transport.is_closing():
            self.transport.pause_reading()

    def _parse_soon(self) -> None:
        if self._fair_queue is not None and self._unparsed and not self._parsing and not self.read_paused:
            self._parsing = True
            self._fair_queue.run(self._share, self._parse)

    def _parse(self) -> None:
        """Look at what came, for as long as a turn may take and messages are taken; then at the rest."""
        self._parsing = False
        start = feed_slices(self._unparsed, super().data_received, self._may_parse, _SLICE)
        del self._unparsed[: len(self._unparsed) if self.transport.is_closing() else start]
        if self._unparsed:
            self.transport.pause_reading()
            self._parse_soon()
        elif not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _may_parse(self) -> bool:
        return not self.read_paused and not self.transport.is_closing()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()  # the base goes on when nothing waits: here something may
        self._parse_soon()
        return message

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= _MAX_FRAGMENTS:
            self.conn.fail(_TOO_BIG, f"A message is in more than {_MAX_FRAGMENTS} fragments.")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def take(self, taker: Taker) -> None:
        """From now on messages go to the taker, and no longer to `receive`; those that wait go first."""
        self._taker = taker
        self.go_on()
        for _ in range(self.queue.qsize()):
            event = self.queue.get_nowait()
            text, data = event.get("text"), event.get("bytes")
            if event["type"] != "websocket.receive":
                self.queue.put_nowait(event)
            elif text is not None:
                taker(str(text).encode(), True)
            else:
                taker(cast(bytes, data), False)

    def hold(self) -> None:
        """Read nothing more from the client for now."""
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    def go_on(self) -> None:
        if self.read_paused and not self.transport.is_closing():
            self.read_paused = False
            if not self._unparsed:
                self.transport.resume_reading()
            self._parse_soon()

    def pass_on(self, message: bytes, text: bool) -> bool:
        """Send a message without waiting; False when the client has enough to read for now: wait for `room`."""
        if not self.transport.is_closing():
            try:
                self.conn.send_text(message) if text else self.conn.send_binary(message)
            except InvalidState:
                return True  # it is leaving, and `receive` says so
            self.transport.write(b"".join(self.conn.data_to_send()))
        return self.writable.is_set()

    async def room(self) -> None:
        """Returns when the client has read enough, or is gone."""
        await self.writable.wait()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            cast(dict[str, object], self.scope["extensions"])[_OWN] = self

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.parser.close()  # it holds what it belongs to

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:  # the scope holds this connection, and this connection the scope
            cast(dict[str, object], self.scope["extensions"]).pop(_OWN, None)
            self._end()

    def _end(self) -> None:
        self._ended = True
        waiting, self._unparsed = bytes(self._unparsed), bytearray()
        if self._fair_queue is None or self.transport.is_closing():
            return
        self.read_paused = False
        self.transport.resume_reading()  # whoever does not read does not see the client leave
        if waiting:
            self._look_for_close(waiting)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # who does not read would never let it close

    def send_receive_event_to_app(self) -> None:
        if self._ended:
            self.frames = []
            return
        if self._taker is not None and not self.close_sent and self._is_sound():
            frames, self.frames = self.frames, []
            self._taker(frames[0] if len(frames) == 1 else b"".join(frames), self.curr_msg_data_type == "text")
            return
        paused, waiting = self.read_paused, not self.queue.empty()
        self.read_paused = paused or not waiting  # with this set, the base has nothing to stop
        super().send_receive_event_to_app()
        self.read_paused = paused or waiting

    def _is_sound(self) -> bool:
        """Text that is none is the base's to refuse."""
        if self.curr_msg_data_type == "text":
            if len(self.frames) > 1:
                self.frames = [b"".join(self.frames)]
            try:
                str(self.frames[0], "utf-8")
            except UnicodeDecodeError:
                return False
        return True
