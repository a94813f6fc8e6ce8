"""A connection that a test leaves open is closed with its loop, and named."""

from __future__ import annotations

import asyncio
import gc
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
