"""A TCP proxy that cuts its connections when a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CuttingProxy:
    """Passes bytes on to one port of the loopback, until it is told to cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.cuts = 0

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._open.add(inner_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._copy(reader, inner_writer))
                    group.create_task(self._copy(inner_reader, writer))
            finally:
                self._open.discard(inner_writer)
                inner_writer.transport.abort()
        except* OSError:
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()


@asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    """In front of a service of this URL."""
    proxy = CuttingProxy(int(url.rsplit(":", 1)[1]))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await server.wait_closed()
