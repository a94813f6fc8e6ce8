"""A person at a terminal, as ttyd's protocol knows one."""

from __future__ import annotations

import asyncio
import json
from typing import Self

from websockets.asyncio.client import ClientConnection, connect


class Typist:
    """Types, and keeps what the terminal showed."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen = bytearray()

    @classmethod
    async def at(cls, address: str, columns: int = 100, rows: int = 30, headers: dict[str, str] | None = None) -> Self:
        socket = await connect(
            address,
            subprotocols=["tty"],  # type: ignore[list-item]
            compression=None,
            max_size=None,
            open_timeout=60,
            additional_headers=headers,
        )
        await socket.send(json.dumps({"AuthToken": "", "columns": columns, "rows": rows}).encode())
        return cls(socket)

    async def type(self, text: str) -> None:
        await self.socket.send(b"0" + text.encode())

    async def resize(self, columns: int, rows: int) -> None:
        await self.socket.send(b"1" + json.dumps({"columns": columns, "rows": rows}).encode())

    async def until(self, text: str, limit: float = 60.0) -> str:
        """What was shown since the last time, up to and with this text."""
        wanted = text.encode()
        async with asyncio.timeout(limit):
            while wanted not in self.seen:
                message = await self.socket.recv()
                data = message if isinstance(message, bytes) else message.encode()
                if data[:1] == b"0":
                    self.seen += data[1:]
        end = self.seen.index(wanted) + len(wanted)
        shown = self.seen[:end].decode("utf-8", "replace")
        del self.seen[:end]
        return shown

    async def leave(self) -> None:
        async def listen() -> None:
            async for _ in self.socket:
                pass

        # What was not listened to stands before the answer to the goodbye.
        await asyncio.gather(self.socket.close(), listen(), return_exceptions=True)
