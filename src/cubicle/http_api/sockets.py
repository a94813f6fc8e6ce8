"""How uvicorn treats the service's WebSockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.http11 import Request

Taker = Callable[[bytes, bool], None]
"""Takes one message: its bytes, and whether they are text."""

_OWN = "cubicle.socket"


class ClientSocket(WebSocketsSansIOProtocol):
    """Stops reading from a client only when a message already waits to be taken.

    The base stops at every message, and goes on when it is taken: two changes to what the kernel watches, each as dear
    as a read. A relay takes messages in the very call that they come with, and passes messages on in the same way.
    """

    _taker: Taker | None = None

    @staticmethod
    def of(client: WebSocket) -> ClientSocket:
        """The connection under a client's WebSocket."""
        return cast(ClientSocket, client.scope["extensions"][_OWN])

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
            self.transport.resume_reading()

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

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # who does not read would never let it close

    def send_receive_event_to_app(self) -> None:
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
