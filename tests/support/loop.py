"""The event loop of a test. Connections that are open when it ends are closed, and the summary of the run names them.

A client that a time limit cuts off while it connects leaves such a one. Collected later as rubbish, it would fail a test
that has nothing to do with it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

LEFT_OPEN: list[str] = []
"""What tests left open, and which ones."""


class TidyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._connections: list[Any] = []

    def _make_socket_transport(self, *args: Any, **named: Any) -> Any:
        transport = super()._make_socket_transport(*args, **named)  # type: ignore[misc]
        self._keep(transport)
        return transport

    def _make_ssl_transport(self, sock: Any, *args: Any, **named: Any) -> Any:
        transport = super()._make_ssl_transport(sock, *args, **named)  # type: ignore[misc]
        self._keep(self._transports[sock.fileno()])  # type: ignore[attr-defined]
        return transport

    def _keep(self, transport: Any) -> None:
        self._connections = [known for known in self._connections if known._sock is not None]
        self._connections.append(transport)

    def close(self) -> None:
        if not self.is_running() and not self.is_closed():
            self._close_connections()
        super().close()

    def _close_connections(self) -> None:
        for connection in self._connections:
            if not connection.is_closing():
                test = os.environ.get("PYTEST_CURRENT_TEST", "?")
                LEFT_OPEN.append(f"{test}: {connection.get_protocol()!r} {connection.get_extra_info('peername')}")
            connection.abort()
        # One round for them to let go of their sockets, one for what that wakes.
        for _ in range(2):
            self.run_until_complete(asyncio.sleep(0))
        self._connections.clear()
