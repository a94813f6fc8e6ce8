"""A connection that a test leaves open is closed with its loop, and named."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from typing import Any

from tests.support import loop


def test_a_connection_that_is_left_open_is_closed_and_named(monkeypatch: Any) -> None:
    named: list[str] = []
    monkeypatch.setattr(loop, "LEFT_OPEN", named)

    async def leave_one() -> None:
        running = asyncio.get_running_loop()
        server = await running.create_server(asyncio.Protocol, "127.0.0.1", 0)
        transport, _ = await running.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        transport.pause_reading()  # nothing but the transport itself knows of its socket any more
        server.close()

    with asyncio.Runner(loop_factory=loop.TidyLoop) as runner:
        runner.run(leave_one())
    gc.collect()  # what is still open would warn here, and fail this test
    assert any("test_a_connection_that_is_left_open" in line for line in named)


def test_one_over_tls_that_was_given_up_before_it_began_is_closed(monkeypatch: Any) -> None:
    named: list[str] = []
    monkeypatch.setattr(loop, "LEFT_OPEN", named)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def leave_one() -> None:
        running: Any = asyncio.get_running_loop()
        transport = running._make_ssl_transport(ours, asyncio.Protocol(), ssl.create_default_context())
        transport.close()  # as asyncio does when its caller is cancelled; nothing comes of it yet

    with theirs, asyncio.Runner(loop_factory=loop.TidyLoop) as runner:
        runner.run(leave_one())
    assert ours.fileno() == -1
    gc.collect()
