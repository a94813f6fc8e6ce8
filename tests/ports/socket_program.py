"""A WebSocket server for tests that runs in a sandbox: `python3 socket_program.py PORT`, with `websockets` at hand."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol


async def answer(connection: ServerConnection) -> None:
    assert connection.request is not None
    if connection.request.path.startswith("/headers"):
        for name, value in connection.request.headers.raw_items():
            await connection.send(f"{name}: {value}")
        await connection.close(4000, "that was all")
        return
    if connection.request.path.startswith("/flood"):
        while True:
            await connection.send(b"x" * 65536)
    if connection.request.path.startswith("/deaf"):
        await asyncio.Future()
    if connection.request.path.startswith("/long?"):
        await connection.send(bytes(int(connection.request.path.partition("?")[2])))
    if connection.request.path.startswith("/farewell?"):
        await connection.recv()
        await connection.send(bytes(int(connection.request.path.partition("?")[2])))
        await connection.close(4000, "that was all")
        sys.stderr.write(f"closed {connection.close_code}\n")
        return
    if connection.request.path.startswith("/leave"):  # a close frame without a code
        connection.transport.write(b"\x88\x00")
        await asyncio.Future()
    if connection.request.path.startswith("/length"):
        await connection.send(str(len(await connection.recv())))
    try:
        async for message in connection:
            await connection.send(message)
    finally:
        sys.stderr.write(f"closed {connection.close_code}\n")


async def refuse(_connection: ServerConnection, request: Request) -> Response | None:
    return _connection.respond(418, "no") if request.path.startswith("/refused") else None


def choose(_connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return next((name for name in offered if name == "chat"), None)


async def main(port: int) -> None:
    async with serve(
        answer, "127.0.0.1", port, select_subprotocol=choose, process_request=refuse, max_size=None, backlog=512
    ):
        await asyncio.Future()


asyncio.run(main(int(sys.argv[1])))
