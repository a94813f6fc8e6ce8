"""How uvicorn treats the service's WebSockets."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class ClientSocket(WebSocketsSansIOProtocol):
    """Stops reading from a client only when a message already waits to be taken.

    The base stops at every message, and goes on when it is taken: two changes to what the kernel watches, each as dear
    as a read.
    """

    def send_receive_event_to_app(self) -> None:
        paused, waiting = self.read_paused, not self.queue.empty()
        self.read_paused = paused or not waiting  # with this set, the base has nothing to stop
        super().send_receive_event_to_app()
        self.read_paused = paused or waiting
