"""How uvicorn treats the service's WebSockets."""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, MutableMapping
from typing import Any, cast

from starlette.websockets import WebSocket
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request

from cubicle.core import close_codes
from cubicle.fairness.byte_budget import MAX_FRAME, OVER_BUDGET, ByteAccount
from cubicle.fairness.fair_queue import FairQueue, LoopShare
from cubicle.fairness.slices import feed_slices

Taker = Callable[[bytes, bool, bool], None]
"""Takes one message: its bytes, whether they are text, and whether that is all of it."""

ClientLeft = ClientDisconnected
"""Raised by `send` when the client is gone."""

_OWN = "cubicle.socket"
_SLICE = 512
_MAX_FRAGMENTS = 1024
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
    _account: ByteAccount | None = None
    """Of one whose messages go on by the frame: where it is booked what is held of them."""
    _unread = 0
    """Bytes of messages that were passed on since the client had enough: each is kept whole until all of it is read."""
    _patient = False
    _choked = False
    """Whether it pinged, and did not read the answers to pings before: nothing more is parsed until it does."""
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

    def stream(self, account: ByteAccount) -> None:
        """Read nothing before `take`; from then on messages come by the frame, however long they are.

        What is held meanwhile is in the account, which this one closes: a frame that is not whole, and what the client
        does not read.
        """
        self._account = account
        self.be_patient()
        self.conn.max_message_size, self.conn.max_fragment_size = None, MAX_FRAME
        self.hold()

    def be_patient(self) -> None:
        """Let the client pause for as long as it likes: the answer to a ping lies behind what it does not read yet.

        The pings still go out, and the kernel finds out who is gone by them.
        """
        self._patient = True

    def data_received(self, data: bytes) -> None:
        if self._fair_queue is None:
            self._feed(data)
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
            self._feed(data)
            return
        if self.close_timer is not None and self.close_timer.when() > self.loop.time() + _LAST_SECONDS:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(_LAST_SECONDS, self.transport.close)
        if self._after_end > _DROPPED_AT_END and not self.transport.is_closing():
            self.transport.pause_reading()

    def _parse_soon(self) -> None:
        if self._fair_queue is not None and self._unparsed and not self._parsing and self._may_parse():
            self._parsing = True
            self._fair_queue.run(self._share, self._parse)

    def _parse(self) -> None:
        """Look at what came, for as long as a turn may take and messages are taken; then at the rest."""
        self._parsing = False
        start = feed_slices(self._unparsed, self._feed, self._may_parse, _SLICE)
        del self._unparsed[: len(self._unparsed) if self.transport.is_closing() else start]
        if self._unparsed:
            self.transport.pause_reading()
            self._parse_soon()
        elif not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        super().data_received(data)
        self._book()

    def _book(self) -> None:
        """Note what is held; whoever holds more than there is for the chat is closed."""
        if self._account is None or self.transport.is_closing():
            return
        if self._account.hold(len(self.conn.reader.buffer) + self._unread) or self.close_sent:
            return
        self.conn.fail(close_codes.TRY_LATER, OVER_BUDGET)
        self.handle_parser_exception()
        if self._unread:
            self.transport.abort()  # whoever does not read would hold it for as long as the kernel waits

    def _may_parse(self) -> bool:
        return not self.read_paused and not self._choked and not self.transport.is_closing()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # the base takes a handshake that was answered for one that was forgotten

    async def receive(self) -> Any:
        message = await super().receive()
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()  # the base goes on when nothing waits: here something may
        self._parse_soon()
        return message

    def handle_text(self, event: Frame) -> None:
        if not self._take_fragment(event, text=True):
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if not self._take_fragment(event, text=False):
            super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        if self._take_fragment(event, text=self.curr_msg_data_type == "text"):
            return
        if len(self.frames) >= _MAX_FRAGMENTS:
            self.conn.fail(close_codes.TOO_BIG, f"A message is in more than {_MAX_FRAGMENTS} fragments.")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def _take_fragment(self, event: Frame, *, text: bool) -> bool:
        """Hand it to the taker, if that takes fragments. Text that is none is for the other end to refuse."""
        if self._taker is None or self._account is None:
            return False
        self.curr_msg_data_type = "text" if text else "bytes"
        if not self.close_sent:
            self._taker(bytes(event.data), text, event.fin)
        event.data = b""  # the parser keeps the last frame until the next one comes
        return True

    def handle_ping(self) -> None:
        super().handle_ping()
        self._choked = not self.writable.is_set()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = 0
        self._book()
        if self._choked:
            self._choked = False
            self._parse_soon()

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
                taker(str(text).encode(), True, True)
            else:
                taker(cast(bytes, data), False, True)
        if self._account is not None and self.frames:
            frames, self.frames = self.frames, []
            taker(b"".join(frames), self.curr_msg_data_type == "text", False)

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

    def pass_on(self, message: bytes, text: bool, last: bool = True) -> bool:
        """Send a message without waiting; False when the client has enough to read for now: wait for `room`.

        Unless it is the `last` of it, the next one goes on with the same message.
        """
        if not self.transport.is_closing():
            try:
                if self.conn.expect_continuation_frame:
                    self.conn.send_continuation(message, last)
                else:
                    self.conn.send_text(message, last) if text else self.conn.send_binary(message, last)
            except InvalidState:
                return True  # it is leaving, and `receive` says so
            self.transport.write(b"".join(self.conn.data_to_send()))
            self._unread = 0 if self.writable.is_set() else self._unread + len(message)
            self._book()
        return self.writable.is_set()

    def abort(self) -> None:
        """Hang up at once, whatever it has not read yet."""
        self.transport.abort()

    @property
    def has_closed(self) -> bool:
        """Whether the client said that it leaves; if not, it was lost. Both may come without a code."""
        return self.conn.close_rcvd is not None

    async def room(self) -> None:
        """Returns when the client has read enough, or is gone."""
        await self.writable.wait()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            cast(dict[str, object], self.scope["extensions"])[_OWN] = self

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._account is not None:
            self._account.close()
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
        unheard = self._patient or self.read_paused or self._unparsed
        if unheard and not self.close_sent and not self.transport.is_closing():
            # Its answer may have come and was not looked at. If it is gone, the ping made the kernel find that out.
            if self._is_gone():
                self.transport.abort()
                return
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self.transport.abort()  # who does not read would never let it close

    def _is_gone(self) -> bool:
        """Whether the connection broke: the event loop does not see it while nothing is read."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLERR | select.POLLHUP)
        return bool(poll.poll(0))

    def send_receive_event_to_app(self) -> None:
        if self._ended:
            self.frames = []
            return
        if self._taker is not None and not self.close_sent and self._is_sound():
            frames, self.frames = self.frames, []
            self._taker(frames[0] if len(frames) == 1 else b"".join(frames), self.curr_msg_data_type == "text", True)
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
